# SPDX-License-Identifier: Apache-2.0
"""The parts of /openapi.json for embeddings, reranking, scores and classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rtp_llm.server.openapi.openapi_bounds import Schema, Served, bound, token_id
from rtp_llm.server.protocols.embeddings import bodies
from rtp_llm.server.types.bounds import MAX_INPUTS

Kind = type[msgspec.Struct]
BODIES: Mapping[str, Kind] = {"/v1/embeddings": bodies.EmbeddingRequest}
ANSWERS: Mapping[str, Any] = {"/v1/embeddings": bodies.EmbeddingList}


def describe_bodies(components: Schema, served: Served) -> None:
    """What their types cannot say."""
    for kind in set(BODIES.values()):
        properties = components[kind.__name__]["properties"]
        bound(properties, served)
        if "input" in properties:
            properties["input"] = inputs(served.vocab_size)
        if "dimensions" in properties:
            properties["dimensions"] = _dimensions(served)


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
