# SPDX-License-Identifier: Apache-2.0
"""Requests and answers in OpenAI's, Jina's and vLLM's shapes."""

from __future__ import annotations

from typing import Literal

import msgspec

# A text, texts, token ids, or lists of token ids.
Inputs = str | list[str | int | list[int]]


class PooledBody(msgspec.Struct, kw_only=True):
    """Fields of all. `truncate_prompt_tokens`: of each input, -1: as many as fit;
    `truncation_side`: where tokens are left out; `cache_salt`: separates the prefix cache."""

    model: str | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    add_special_tokens: bool | None = None
    cache_salt: str | None = None
    priority: int | None = None


class EmbeddingRequest(PooledBody, kw_only=True):
    """POST /v1/embeddings. `encoding_format`: base64 is of little-endian float32 numbers;
    `dimensions`: only of models that declare it; `normalize`: vectors to length 1."""

    input: Inputs
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    normalize: bool | None = None


class PooledUsage(msgspec.Struct, kw_only=True):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class Embedding(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The vector of an input."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/embeddings: the vectors, in the order of the inputs."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: PooledUsage
