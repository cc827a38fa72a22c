# SPDX-License-Identifier: Apache-2.0
"""A body that is right for each endpoint for embeddings, scores and labels."""

from __future__ import annotations

from typing import Any

RANKED: dict[str, Any] = {"query": "a house?", "documents": ["a house."]}
SCORED: dict[str, Any] = {"queries": "a", "documents": ["b", "c"]}
POOLED_BODIES: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"input": ["a house."]},
    "/rerank": RANKED,
    "/v1/rerank": RANKED,
    "/v2/rerank": RANKED,
    "/score": SCORED,
    "/v1/score": SCORED,
    "/classify": {"input": "a house."},
    "/pooling": {"input": "a house."},
    "/v2/embed": {"texts": ["a house."], "input_type": "search_query"},
    "/embed": {"inputs": "a house."},
    "/predict": {"inputs": "a house."},
    "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
    "/api/embed": {"input": "a house."},
    "/api/embeddings": {"prompt": "a house."},
}
