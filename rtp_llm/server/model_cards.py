# SPDX-License-Identifier: Apache-2.0
"""The model cards of /v1/models, for clients of OpenAI, vLLM and Anthropic."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rtp_llm import __version__
from rtp_llm.config.settings import Settings
from rtp_llm.engine.messages import EngineReady
from rtp_llm.server.types.bounds import MAX_INPUT_TOKENS, MAX_INPUTS
from rtp_llm.text.tokenizer import Tokenizer


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


def model_info(settings: Settings, tokenizer: Tokenizer, ready: EngineReady) -> dict[str, Any]:
    """The answer of GET /info, in the form of Text Embeddings Inference."""
    named = tokenizer.model_config.get("id2label") or {}
    labels = {"id2label": named, "label2id": {str(label): key for key, label in named.items()}}
    pooling = ready.pooling.pooling_type if ready.pooling else None
    kind: dict[str, Any]
    if "embed" in ready.tasks:
        kind = {"embedding": {"pooling": {"last": "last_token"}.get(pooling or "", pooling)}}
    elif "score" in ready.tasks:
        kind = {"reranker": labels}
    else:
        kind = {"classifier": labels} if "classify" in ready.tasks else {"generator": {}}
    return {
        "model_id": settings.model_name,
        "model_sha": None,
        "model_dtype": ready.dtype,
        "model_type": kind,
        "max_concurrent_requests": ready.max_running + ready.max_queued,
        "max_input_length": ready.max_model_len,
        "max_batch_tokens": MAX_INPUT_TOKENS,
        "max_batch_requests": None,
        "max_client_batch_size": MAX_INPUTS,
        "auto_truncate": False,
        "tokenization_workers": settings.prepare_processes or None,
        "version": __version__,
        "sha": None,
        "docker_label": None,
    }
