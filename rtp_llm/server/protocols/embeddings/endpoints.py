# SPDX-License-Identifier: Apache-2.0
"""The endpoints for vectors, scores and labels, in a table."""

from __future__ import annotations

from typing import Any

from rtp_llm.server.endpoint.pooled_answer import PooledEndpoint
from rtp_llm.server.protocols.embeddings.openai import EMBEDDINGS

ENDPOINTS: tuple[PooledEndpoint[Any], ...] = (EMBEDDINGS,)
