# SPDX-License-Identifier: Apache-2.0
"""Pairs of texts and their scores: by a reranker, or the cosine of embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import mul

from rtp_llm.server.endpoint.pooled_answer import Pooled
from rtp_llm.server.turn.pooled_prompts import Input, PromptEncoder, pooling_params
from rtp_llm.server.types.jobs import PromptBatch
from rtp_llm.text.rerank_template import conversation_frame, conversation_text, is_conversation


def score_pairs(
    queries: Sequence[str],
    documents: Sequence[str],
    encoder: PromptEncoder,
    *,
    instruction: str | None = None,
    use_activation: bool | None = None,
    priority: int = 0,
    cache_salt: str | None = None,
) -> PromptBatch:
    """The prompts from which `scores_of` finds the score of each document and its query.

    One of `queries` is that of all documents. Models that embed are given the queries first.
    Raises ApiError.
    """
    model = encoder.model
    if "score" not in model.tasks:
        params = pooling_params(normalize=True, priority=priority)
        return encoder.batch([*queries, *documents], params, cache_salt)
    fields = {"use_activation": use_activation, "priority": priority}
    params = pooling_params(task="score", **fields)
    several = list(queries) * len(documents) if len(queries) == 1 else queries
    pairs: list[Input] = list(zip(several, documents, strict=True))
    if is_conversation(model.tokenizer.model_config):
        frame = conversation_frame(model.tokenizer)
        texts: list[Input] = [
            conversation_text(*pair, instruction) for pair in zip(several, documents, strict=True)
        ]
        return replace(encoder, frame=frame).batch(texts, params, cache_salt)
    return encoder.batch(pairs, params, cache_salt)


def scores_of(pooled: Pooled, num_documents: int) -> list[float]:
    """The score of each document."""
    rows = list(pooled.numbers())
    if len(rows) == num_documents:
        return [row[0] for row in rows]
    queries, documents = rows[:-num_documents], rows[-num_documents:]
    if len(queries) == 1:
        queries *= num_documents
    return [sum(map(mul, *pair)) for pair in zip(queries, documents, strict=True)]
