# SPDX-License-Identifier: Apache-2.0
"""The endpoints for vectors, scores and labels, in a table."""

from __future__ import annotations

from typing import Any

from rtp_llm.server.endpoint.pooled_answer import PooledEndpoint
from rtp_llm.server.protocols.embeddings.classify import CLASSIFY, POOLING
from rtp_llm.server.protocols.embeddings.cohere import COHERE_EMBED
from rtp_llm.server.protocols.embeddings.openai import EMBEDDINGS
from rtp_llm.server.protocols.embeddings.rerank import COHERE_RERANK, RERANK
from rtp_llm.server.protocols.embeddings.score import SCORE
from rtp_llm.server.protocols.embeddings.tei import EMBED, PREDICT, SIMILARITY

ENDPOINTS: tuple[PooledEndpoint[Any], ...] = (
    EMBEDDINGS,
    *RERANK,
    COHERE_RERANK,
    *SCORE,
    CLASSIFY,
    POOLING,
    COHERE_EMBED,
    EMBED,
    PREDICT,
    SIMILARITY,
)
