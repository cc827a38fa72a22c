# SPDX-License-Identifier: Apache-2.0
"""POST /v1/embeddings: vectors of texts, in OpenAI's shape."""

from __future__ import annotations

import binascii
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from rtp_llm.server.endpoint.pooled_answer import Pooled, PooledEndpoint, floats, separated
from rtp_llm.server.protocols.embeddings.bodies import EmbeddingRequest, Inputs, PooledBody
from rtp_llm.server.turn.body_kind import BodyKind
from rtp_llm.server.turn.parse import parse_request
from rtp_llm.server.turn.pooled_prompts import (
    Input,
    PromptEncoder,
    Truncation,
    check_dimensions,
    pooling_params,
    with_prompt,
)
from rtp_llm.server.turn.prepared import PreparedBody, PreparedPrompts
from rtp_llm.server.turn.served_model import ServedModel
from rtp_llm.server.types.errors import bad_request


@dataclass(frozen=True)
class EmbeddingOptions:
    """What an answer contains. `base64`: vectors are texts."""

    model: str
    base64: bool = False


def prepare_embeddings(
    body: bytes, model: ServedModel
) -> PreparedPrompts[EmbeddingOptions] | PreparedBody:
    """Turn the body of POST /v1/embeddings into prompts; raises ApiError."""
    request, ignored = parse_request(body, EmbeddingRequest, model)
    check_dimensions(request.dimensions, model)
    params = pooling_params(
        dimensions=request.dimensions,
        normalize=request.normalize,
        priority=request.priority or 0,
    )
    inputs = with_prompt(list_inputs(request.input), request.prompt_name, model)
    batch = encoder(request, model, "input").batch(inputs, params, request.cache_salt)
    options = EmbeddingOptions(model.name, request.encoding_format == "base64")
    return PreparedPrompts(batch, options, ignored)


def encoder(request: PooledBody, model: ServedModel, param: str) -> PromptEncoder:
    """Encodes the inputs in the field `param`, as the request says."""
    truncation = Truncation(request.truncate_prompt_tokens, request.truncation_side or "right")
    return PromptEncoder(model, param, truncation, request.add_special_tokens is not False)


def list_inputs(given: Inputs, param: str = "input") -> list[Input]:
    """The inputs one by one; raises ApiError 400 for a mixture of texts and token ids."""
    if isinstance(given, str):
        return [given]
    kinds = set(map(type, given))
    if kinds == {int}:
        return [given]  # type: ignore[list-item]
    if len(kinds) > 1:
        raise bad_request(
            f"{param}: must be a text, a list of texts, a list of token ids or a list of lists of "
            "token ids.",
            param=param,
            code="invalid_type",
        )
    return given  # type: ignore[return-value]


def write_embeddings(options: EmbeddingOptions, pooled: Pooled) -> Iterator[bytes]:
    """The parts of the answer."""
    yield b'{"object":"list","data":['
    encode = _text if options.base64 else _numbers
    yield from separated(
        b'{"object":"embedding","index":%d,"embedding":%b}' % (index, encode(row))
        for index, row in enumerate(pooled.rows())
    )
    tokens = pooled.prompt_tokens
    yield b'],"model":%b,"usage":{"prompt_tokens":%d,"total_tokens":%d}}' % (
        msgspec.json.encode(options.model),
        tokens,
        tokens,
    )


def _text(row: memoryview) -> bytes:
    return b'"%b"' % binascii.b2a_base64(row, newline=False)


def _numbers(row: memoryview) -> bytes:
    return msgspec.json.encode(floats(row))


EMBEDDINGS = PooledEndpoint(
    "/v1/embeddings",
    "POST /v1/embeddings: a vector for each input.",
    BodyKind("embeddings", prepare_embeddings, (EmbeddingOptions,), renders=False, pools=True),
    write_embeddings,
)
