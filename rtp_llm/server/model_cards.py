# SPDX-License-Identifier: Apache-2.0
"""The model cards of /v1/models, for clients of OpenAI, vLLM and Anthropic."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any


def model_card(name: str, root: str, created: int, max_model_len: int | None) -> dict[str, Any]:
    """The card of a served model. `root`: its folder; `created`: Unix time in seconds."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "rtp-llm",
        "root": root,
        "parent": None,
        "max_model_len": max_model_len,
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
    }


def model_list(cards: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The list of all cards, on a single page."""
    return {
        "object": "list",
        "data": list(cards),
        "first_id": cards[0]["id"] if cards else None,
        "last_id": cards[-1]["id"] if cards else None,
        "has_more": False,
    }
