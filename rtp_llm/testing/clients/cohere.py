# SPDX-License-Identifier: Apache-2.0
"""Cohere's client: vectors of several types, and documents ranked by their cosines."""

from __future__ import annotations

from typing import Any

import cohere

from rtp_llm.testing.clients import turn as common

TYPES = ["float", "int8", "ubinary"]


def turns(url: str) -> dict[str, Any]:
    client = cohere.ClientV2(api_key=common.KEY, base_url=url)
    vectors = client.embed(
        texts=common.TEXTS,
        model=common.MODEL,
        input_type="search_document",
        embedding_types=TYPES,
    ).embeddings
    ranked = client.rerank(
        model=common.MODEL, query=common.TEXTS[0], documents=common.TEXTS[::-1], top_n=2
    )
    return {
        "float": vectors.float_,
        "int8": vectors.int8,
        "ubinary": vectors.ubinary,
        "ranked": [[each.index, each.relevance_score] for each in ranked.results],
    }
