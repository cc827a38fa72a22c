# SPDX-License-Identifier: Apache-2.0
"""The parts of /openapi.json for embeddings, reranking, scores and classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rtp_llm.server.openapi.openapi_bounds import Schema, Served, bound, token_id, types_of
from rtp_llm.server.protocols.embeddings import bodies, cohere, tei
from rtp_llm.server.protocols.ollama import embeddings as ollama
from rtp_llm.server.protocols.ollama.names import tagged
from rtp_llm.server.types.bounds import MAX_INPUTS

PLACE = "#/components/schemas/"
Kind = type[msgspec.Struct]
BODIES: Mapping[str, Kind] = {
    "/v1/embeddings": bodies.EmbeddingRequest,
    **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), bodies.RerankRequest),
    **dict.fromkeys(("/score", "/v1/score"), bodies.ScoreRequest),
    "/classify": bodies.ClassifyRequest,
    "/pooling": bodies.PoolingRequest,
    "/v2/embed": cohere.CohereEmbedRequest,
    "/embed": tei.TeiEmbedRequest,
    "/predict": tei.TeiPredictRequest,
    "/similarity": tei.TeiSimilarityRequest,
    "/api/embed": ollama.OllamaEmbedRequest,
    "/api/embeddings": ollama.OllamaEmbeddingsRequest,
}
# The others are lists, of lists or numbers too.
ANSWERS: Mapping[str, Any] = {
    "/v1/embeddings": bodies.EmbeddingList,
    **dict.fromkeys(("/score", "/v1/score"), bodies.ScoreList),
    "/classify": bodies.ClassifiedList,
    "/pooling": bodies.PooledList,
    "/v2/embed": cohere.CohereEmbedAnswer,
    "/api/embed": ollama.OllamaEmbedAnswer,
    "/api/embeddings": ollama.OllamaEmbeddingsAnswer,
}
_PARTS = (bodies.Ranking, bodies.RankedText, cohere.CohereRanking, tei.TeiLabel)
_RANKING = {
    "anyOf": [
        {"$ref": PLACE + "Ranking"},
        {"type": "array", "items": {"$ref": PLACE + "RankedText"}},
    ]
}
_NUMBERS = {"type": "array", "items": {"type": "number"}}
_LABELS = {"type": "array", "items": {"$ref": PLACE + "TeiLabel"}}
# Answers that are no structs.
SCHEMAS: Mapping[str, Schema] = {
    "/rerank": _RANKING,
    "/v1/rerank": _RANKING,
    "/v2/rerank": {"anyOf": [{"$ref": PLACE + "CohereRanking"}, *_RANKING["anyOf"][1:]]},
    "/embed": {"type": "array", "items": _NUMBERS},
    "/predict": {"anyOf": [_LABELS, {"type": "array", "items": _LABELS}]},
    "/similarity": _NUMBERS,
}
KINDS: frozenset[Kind] = frozenset(_PARTS)


def describe_bodies(components: Schema, served: Served) -> None:
    """What their types cannot say."""
    for kind, path in {kind: path for path, kind in BODIES.items()}.items():
        properties = components[kind.__name__]["properties"]
        documents = properties.get("documents")
        bound(properties, served)
        if documents is not None:  # which in chats are for the template
            properties["documents"] = documents
        for name in ("input", "inputs"):
            if path in ("/v1/embeddings", "/classify", "/pooling", "/embed") and name in properties:
                properties[name] = inputs(served.vocab_size)
        for name in ("dimensions", "output_dimension"):
            if name in properties:
                properties[name] = _dimensions(served)
        if path.startswith("/api"):
            names = [*dict.fromkeys([*served.names, *map(tagged, served.names)]), "", None]
            properties["model"] = {"enum": names}
        if "prompt_name" in properties:
            properties["prompt_name"] = {"enum": [*served.prompt_names, None]}
        for each in types_of(properties.get("top_n"), "integer"):
            each["minimum"] = 0
        if kind is cohere.CohereEmbedRequest:  # of a text, which may be longer than an answer
            for each in types_of(properties["max_tokens"], "integer"):
                each.pop("maximum", None)
    parameters = components[tei.TeiParameters.__name__]["properties"]
    parameters["prompt_name"] = {"enum": [*served.prompt_names, None]}


def _dimensions(served: Served) -> Schema:
    size, sizes = served.vector_size, served.matryoshka
    if size and sizes == ():
        return {"anyOf": [{"type": "integer", "minimum": 1, "maximum": size}, {"type": "null"}]}
    return {"enum": [*(sizes or filter(None, [size])), None]}


def inputs(vocab_size: int) -> Schema:
    """A text, texts, token ids, or lists of token ids."""
    ids = {"type": "array", "items": token_id(vocab_size), "minItems": 1}
    text = {"type": "string"}
    many = {"minItems": 1, "maxItems": MAX_INPUTS}
    texts, lists = ({"type": "array", "items": each} | many for each in (text, ids))
    return {"anyOf": [text, texts, ids, lists]}
