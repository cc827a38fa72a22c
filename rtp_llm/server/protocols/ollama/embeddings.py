# SPDX-License-Identifier: Apache-2.0
"""POST /api/embed and /api/embeddings: vectors of texts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from rtp_llm.server.endpoint.pooled_answer import Pooled, PooledEndpoint, separated
from rtp_llm.server.protocols.ollama.names import check_name
from rtp_llm.server.protocols.ollama.protocol import OllamaOptions
from rtp_llm.server.turn.body_kind import BodyKind
from rtp_llm.server.turn.parse import parse
from rtp_llm.server.turn.pooled_prompts import (
    PromptEncoder,
    Truncation,
    check_dimensions,
    pooling_params,
    with_prompt,
)
from rtp_llm.server.turn.prepared import PreparedBody, PreparedPrompts
from rtp_llm.server.turn.served_model import ServedModel


class OllamaEmbedRequest(msgspec.Struct, kw_only=True):
    """POST /api/embed. `truncate`: longer texts are cut, by default; `keep_alive`: taken and not
    used."""

    model: str | None = None
    input: str | list[str] = ""
    truncate: bool | None = None
    dimensions: int | None = None
    options: OllamaOptions | None = None
    keep_alive: float | str | None = None


class OllamaEmbeddingsRequest(msgspec.Struct, kw_only=True):
    """POST /api/embeddings: the vector of one text."""

    model: str | None = None
    prompt: str = ""
    options: OllamaOptions | None = None
    keep_alive: float | str | None = None


class OllamaEmbedAnswer(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /api/embed. Durations are in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int = 0
    prompt_eval_count: int


class OllamaEmbeddingsAnswer(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /api/embeddings."""

    embedding: list[float]


@dataclass(frozen=True)
class OllamaEmbedOptions:
    """What an answer contains. `began`: seconds of time.monotonic()."""

    model: str
    began: float
    single: bool = False


def prepare_embed(
    body: bytes, model: ServedModel
) -> PreparedPrompts[OllamaEmbedOptions] | PreparedBody:
    """Turn the body of POST /api/embed into prompts; raises ApiError."""
    began = time.monotonic()
    request, ignored = parse(body, OllamaEmbedRequest, model.strict_fields)
    options = OllamaEmbedOptions(check_name(request.model, model), began)
    check_dimensions(request.dimensions, model)
    texts = [request.input] if isinstance(request.input, str) else request.input
    if not texts:
        answer = OllamaEmbedAnswer(
            model=options.model, embeddings=[], total_duration=0, prompt_eval_count=0
        )
        return PreparedBody(msgspec.json.encode(answer), ignored)
    params = pooling_params(normalize=True, dimensions=request.dimensions)
    truncation = Truncation(None if request.truncate is False else -1, name="truncate")
    encoder = PromptEncoder(model, "input", truncation)
    return PreparedPrompts(encoder.batch(with_prompt(texts, None, model), params), options, ignored)


def prepare_embeddings(
    body: bytes, model: ServedModel
) -> PreparedPrompts[OllamaEmbedOptions] | PreparedBody:
    """Turn the body of POST /api/embeddings into prompts; raises ApiError."""
    request, ignored = parse(body, OllamaEmbeddingsRequest, model.strict_fields)
    options = OllamaEmbedOptions(check_name(request.model, model), 0.0, single=True)
    encoder = PromptEncoder(model, "prompt", Truncation(-1))
    inputs = with_prompt([request.prompt], None, model)
    return PreparedPrompts(encoder.batch(inputs, pooling_params()), options, ignored)


def write_embeddings(options: OllamaEmbedOptions, pooled: Pooled) -> Iterator[bytes]:
    """The answer."""
    if options.single:
        yield b'{"embedding":' + msgspec.json.encode(next(pooled.numbers())) + b"}"
        return
    yield b'{"model":' + msgspec.json.encode(options.model) + b',"embeddings":['
    yield from separated(map(msgspec.json.encode, pooled.numbers()))
    duration = int((time.monotonic() - options.began) * 1e9)
    yield b'],"total_duration":%d,"load_duration":0,"prompt_eval_count":%d}' % (
        duration,
        pooled.prompt_tokens,
    )


OLLAMA_EMBEDDINGS = (
    PooledEndpoint(
        "/api/embed",
        "POST /api/embed: a vector for each text.",
        BodyKind("ollama_embed", prepare_embed, (OllamaEmbedOptions,), renders=False, pools=True),
        write_embeddings,
    ),
    PooledEndpoint(
        "/api/embeddings",
        "POST /api/embeddings: the vector of a text.",
        BodyKind(
            "ollama_embeddings",
            prepare_embeddings,
            (OllamaEmbedOptions,),
            renders=False,
            pools=True,
        ),
        write_embeddings,
    ),
)
