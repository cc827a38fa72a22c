# SPDX-License-Identifier: Apache-2.0
"""POST /v2/embed: vectors of texts in several number types, in Cohere's form."""

from __future__ import annotations

import base64
import uuid
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from rtp_llm.server.endpoint.pooled_answer import Pooled, PooledEndpoint, floats, separated
from rtp_llm.server.protocols.embeddings.bodies import RankedDocument
from rtp_llm.server.turn.body_kind import BodyKind
from rtp_llm.server.turn.parse import parse_request
from rtp_llm.server.turn.pooled_prompts import (
    PromptEncoder,
    Truncation,
    check_dimensions,
    pooling_params,
    with_prompt,
)
from rtp_llm.server.turn.prepared import PreparedBody, PreparedPrompts
from rtp_llm.server.turn.served_model import ServedModel
from rtp_llm.server.types.errors import bad_request

EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
InputType = Literal["search_document", "search_query", "classification", "clustering", "image"]
# The prompts of sentence-transformers that fit an input type, of which a model has some.
_PROMPTS = {
    "search_query": ("query", "search_query"),
    "search_document": ("document", "passage", "search_document"),
    "classification": ("classification", "Classification"),
    "clustering": ("clustering", "Clustering"),
}


class CohereContent(msgspec.Struct, kw_only=True):
    """A part of an input."""

    type: Literal["text"]
    text: str


class CohereInput(msgspec.Struct, kw_only=True):
    """An input of several parts, which are joined."""

    content: list[CohereContent]


class CohereEmbedRequest(msgspec.Struct, kw_only=True):
    """POST /v2/embed. `input_type`: chooses the prompt before each text, if the model has one for
    it; `truncate`: where longer texts are cut, NONE: they are refused; `max_tokens`: of a text."""

    model: str | None = None
    texts: list[str] | None = None
    inputs: list[CohereInput] | None = None
    input_type: InputType | None = None
    embedding_types: list[EmbeddingType] | None = None
    output_dimension: int | None = None
    max_tokens: int | None = None
    truncate: Literal["NONE", "START", "END"] | None = None
    priority: int | None = None


class CohereEmbeddings(
    msgspec.Struct,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    rename={"float_": "float"},
):
    """The vectors of each type that was asked for; bits of binary ones are packed into bytes."""

    float_: list[list[float]] | None = None
    int8: list[list[int]] | None = None
    uint8: list[list[int]] | None = None
    binary: list[list[int]] | None = None
    ubinary: list[list[int]] | None = None
    base64: list[str] | None = None


class CohereEmbedAnswer(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v2/embed."""

    id: str
    embeddings: CohereEmbeddings
    texts: list[str]
    meta: dict[str, Any]
    response_type: Literal["embeddings_by_type"] = "embeddings_by_type"


class CohereRanking(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v2/rerank: the documents, the best first."""

    id: str
    results: list[RankedDocument]
    meta: dict[str, Any]


@dataclass(frozen=True)
class CohereOptions:
    """What an answer contains."""

    types: tuple[str, ...]
    texts: tuple[str, ...]


def prepare_embed(body: bytes, model: ServedModel) -> PreparedPrompts[CohereOptions] | PreparedBody:
    """Turn the body of POST /v2/embed into prompts; raises ApiError."""
    request, ignored = parse_request(body, CohereEmbedRequest, model)
    if (request.texts is None) == (request.inputs is None):
        raise bad_request("Give one of texts and inputs.", "texts")
    if request.input_type == "image":
        raise bad_request("input_type: images are not embedded.", "input_type", "unsupported")
    texts = request.texts or [
        " ".join(part.text for part in each.content) for each in request.inputs or ()
    ]
    check_dimensions(request.output_dimension, model, "output_dimension")
    params = pooling_params(dimensions=request.output_dimension, priority=request.priority or 0)
    encoder = PromptEncoder(model, "texts", _truncation(request, model))
    batch = encoder.batch(with_prompt(texts, _prompt_name(request, model), model), params)
    types = tuple(request.embedding_types or ("float",))
    return PreparedPrompts(batch, CohereOptions(types, tuple(texts)), ignored)


def _prompt_name(request: CohereEmbedRequest, model: ServedModel) -> str | None:
    names = _PROMPTS.get(request.input_type or "", ())
    return next((name for name in names if name in model.prompts.texts), None)


def _truncation(request: CohereEmbedRequest, model: ServedModel) -> Truncation:
    side = "left" if request.truncate == "START" else "right"
    if request.truncate == "NONE":
        return Truncation(None, side, "truncate")
    most = request.max_tokens
    if most is not None and most < 1:
        raise bad_request("max_tokens must be at least 1.", "max_tokens", "invalid_value")
    fits = most is None or most >= model.limits.max_model_len
    return Truncation(-1 if fits else most, side, "truncate" if fits else "max_tokens")


def write_embeddings(options: CohereOptions, pooled: Pooled) -> Iterator[bytes]:
    """The answer."""
    meta = {
        "api_version": {"version": "2"},
        "billed_units": {"input_tokens": pooled.prompt_tokens},
    }
    head = {"id": uuid.uuid4().hex, "texts": options.texts, "meta": meta}
    yield msgspec.json.encode(head | {"response_type": "embeddings_by_type"})[:-1]
    yield b',"embeddings":{'
    for number, name in enumerate(dict.fromkeys(options.types)):
        yield b'%b"%b":[' % (b"," if number else b"", name.encode())
        convert = _CONVERTED[name]
        yield from separated(msgspec.json.encode(convert(row)) for row in pooled.rows())
        yield b"]"
    yield b"}}"


def _int8(row: memoryview) -> list[int]:
    return [max(-127, min(127, round(127 * each))) for each in floats(row)]


def _bits(row: memoryview) -> list[int]:
    """A bit for each number, 1 if it is positive, eight in a byte, the first one highest."""
    bits = [each > 0 for each in floats(row)]
    bits += [False] * (-len(bits) % 8)
    packed = array("B")
    for start in range(0, len(bits), 8):
        byte = 0
        for bit in bits[start : start + 8]:
            byte = 2 * byte + bit
        packed.append(byte)
    return packed.tolist()


_CONVERTED: dict[str, Callable[[memoryview], object]] = {
    "float": floats,
    "int8": _int8,
    "uint8": lambda row: [each + 128 for each in _int8(row)],
    "binary": lambda row: [each - 128 for each in _bits(row)],
    "ubinary": _bits,
    "base64": lambda row: base64.b64encode(row).decode(),
}

COHERE_EMBED = PooledEndpoint(
    "/v2/embed",
    "POST /v2/embed: a vector for each text, in Cohere's form.",
    BodyKind("cohere_embed", prepare_embed, (CohereOptions,), renders=False, pools=True),
    write_embeddings,
)
