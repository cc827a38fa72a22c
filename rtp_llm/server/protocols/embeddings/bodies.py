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
    `dimensions`: only of models that declare it; `normalize`: vectors to length 1; `prompt_name`:
    of the model's text before each input, None: its default."""

    input: Inputs
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    prompt_name: str | None = None


class Document(msgspec.Struct, kw_only=True):
    """A document as an object."""

    text: str


class RerankRequest(PooledBody, kw_only=True):
    """POST /rerank and /v1/rerank: the documents by how well they answer the query.

    `top_n`: how many are returned, 0: all; `max_tokens_per_doc`: longer ones are cut;
    `instruction`: what documents must do for the query, for models that read one. TEI's form has
    `texts` instead of `documents`, and its answer is a list.
    """

    query: str
    documents: list[str | Document] | None = None
    texts: list[str] | None = None
    top_n: int | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: int | None = None
    instruction: str | None = None
    raw_scores: bool | None = None
    return_text: bool | None = None
    truncate: bool | None = None
    truncation_direction: Literal["left", "right", "Left", "Right"] | None = None


class ScoreRequest(PooledBody, kw_only=True):
    """POST /score: a score for each pair: of one query and each document, or of as many queries as
    documents. `text_1` and `text_2` are older names."""

    queries: str | list[str] | None = None
    documents: str | list[str] | None = None
    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    instruction: str | None = None
    use_activation: bool | None = None


class ClassifyRequest(PooledBody, kw_only=True):
    """POST /classify: the probabilities of the labels of each input."""

    input: Inputs
    use_activation: bool | None = None


class PoolingRequest(PooledBody, kw_only=True):
    """POST /pooling: what the model pools of each input: a vector, scores or labels, of the input
    or of each of its tokens. `task`: by default the model's first."""

    input: Inputs
    task: Literal["embed", "score", "classify", "token_classify", "reward"] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    use_activation: bool | None = None


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


class RankedDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A document; `index`: its place in the request."""

    index: int
    relevance_score: float
    document: Document | None = None


class RankedText(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A text, in TEI's form."""

    index: int
    score: float
    text: str | None = None


class Ranking(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The documents, the best first."""

    id: str
    model: str
    usage: PooledUsage
    results: list[RankedDocument]


class Score(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The score of a pair."""

    index: int
    object: str = "score"
    score: float


class Classified(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The probabilities of an input's labels, and the likeliest label."""

    index: int
    label: str | None
    probs: list[float]
    num_classes: int


class PooledData(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What was pooled of an input: numbers, for each token if the model has labels of tokens, or
    the base64 text of all numbers."""

    index: int
    object: str = "pooling"
    data: list[float | list[float]] | str


class _List(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    id: str
    object: str = "list"
    created: int
    model: str
    usage: PooledUsage


class ScoreList(_List, kw_only=True):
    """POST /score: in the order of the documents."""

    data: list[Score]


class ClassifiedList(_List, kw_only=True):
    """POST /classify: in the order of the inputs."""

    data: list[Classified]


class PooledList(_List, kw_only=True):
    """POST /pooling: in the order of the inputs."""

    data: list[PooledData]
