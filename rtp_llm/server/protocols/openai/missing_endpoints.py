# SPDX-License-Identifier: Apache-2.0
"""Messages of 404 errors: endpoints of other servers, and what to use here instead."""

from __future__ import annotations

import re
from collections.abc import Callable

_CHAT = "Send the conversation to /v1/chat/completions."
_TEXT_ONLY = "This server generates text: /v1/chat/completions and /v1/completions."
_ONE_MODEL = (
    "This server has the one model that it was started with, which GET /api/tags lists; others are "
    "served by `rtp-llm serve FOLDER`."
)
_PROFILER = "It needs --profiler-dir FOLDER, where traces of the engine are written."

# By path without trailing slash; also matches longer paths that begin with it.
_ELSEWHERE = {
    "/v1/responses/compact": "Conversations are not compacted here. Send /v1/responses a shorter "
    "input, or have it summarised there.",
    "/v1/messages/batches": "Batches are not stored here. Send each to /v1/messages.",
    "/v1/assistants": f"The Assistants API is not supported. {_CHAT}",
    "/v1/threads": f"The Assistants API is not supported. {_CHAT}",
    "/v1/audio": f"Audio is not supported. {_TEXT_ONLY}",
    "/v1/images": f"Images are not generated here. {_TEXT_ONLY}",
    "/v1/moderations": f"There is no moderation model here. {_TEXT_ONLY}",
    "/v1/files": "Files and batches are not stored here; use rtp_llm.LLM for offline batches.",
    "/v1/batches": "Files and batches are not stored here; use rtp_llm.LLM for offline batches.",
    "/v1/fine_tuning": "Models are not trained here.",
    "/v1/load_lora_adapter": "LoRA adapters are not supported yet.",
    "/v1/unload_lora_adapter": "LoRA adapters are not supported yet.",
    "/generate": "SGLang's native API is not here. Use /v1/completions (token ids, too).",
    "/start_profile": _PROFILER,
    "/stop_profile": _PROFILER,
    "/api/pull": _ONE_MODEL,
    "/api/push": _ONE_MODEL,
    "/api/create": _ONE_MODEL,
    "/api/copy": _ONE_MODEL,
    "/api/delete": _ONE_MODEL,
    "/api/blobs": _ONE_MODEL,
    "/embed_sparse": "Sparse vectors are not supported. POST /embed gives dense ones.",
    "/embed_all": "POST /pooling gives what a model pools of each token.",
    "/embedding": "Of llama.cpp's native API only /infill is here. Use /v1/embeddings.",
    "/reranking": "Use /rerank.",
    "/completion": "Of llama.cpp's native API only /infill is here. Use /v1/completions.",
}


def explain_missing(method: str, path: str, serves: Callable[[str], bool]) -> str:
    """One or two sentences for a path that is not served; `serves` tells which paths are."""
    place = f"There is no such endpoint: {method} {path}."
    plain = re.sub("/+", "/", path).rstrip("/")
    if reason := _reason(plain):
        return f"{place} {reason}"
    if plain != path.rstrip("/") and serves(plain or "/"):
        return f"{place} Use {plain or '/'}, with single slashes: a base URL has none at its end."
    if serves(f"/v1{plain}"):
        return f"{place} Use /v1{plain}: a client's base URL ends with /v1."
    doubled = plain.removeprefix("/v1")
    if doubled != plain and serves(doubled):
        return f"{place} Use {doubled}."
    return f"{place} GET / lists all of them."


def is_known_missing(path: str) -> bool:
    """Whether `explain_missing` has an explanation for this path, even if a route matches."""
    return _reason(path.rstrip("/")) is not None


def _reason(plain: str) -> str | None:
    begins = (each for each in _ELSEWHERE if plain == each or plain.startswith(each + "/"))
    found = next(begins, None)
    return None if found is None else _ELSEWHERE[found]
