# SPDX-License-Identifier: Apache-2.0
"""Normalises a request's items for storing and listing: with an id, parts and a status."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}
# Types of parts that are listed under another name than they are sent.
_PLAIN_TEXTS = ("text", "input_text", "output_text")


def full_item(item: dict[str, Any], stored: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The item as OpenAI lists it. `stored`: items that an item_reference may refer to, by id.

    Items of unknown types are kept unchanged, except that they get an id.
    """
    kind = item.get("type") or "message"
    if kind == "item_reference":
        return stored[item["id"]]
    full = {name: value for name, value in item.items() if value is not None}
    full |= {"type": kind, "id": item.get("id")}
    if not (isinstance(full["id"], str) and full["id"]):
        full["id"] = f"{_PREFIXES.get(kind, kind)}_{uuid.uuid4().hex}"
    if kind not in _PREFIXES:
        return full
    full.setdefault("status", "completed")
    if kind == "message":
        full["content"] = _parts(item["content"], item["role"])
    elif kind == "reasoning":
        full["summary"] = [_typed(part, "summary_text") for part in item.get("summary") or ()]
        if "content" in full:
            full["content"] = [_typed(part, "reasoning_text") for part in full["content"]]
    elif isinstance(full.get("output"), list):
        full["output"] = _parts(full["output"], "tool")
    return full


def _parts(content: str | list[dict[str, Any]], role: str) -> list[dict[str, Any]]:
    given = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if role == "assistant":
        more: dict[str, Any] = {"annotations": [], "logprobs": []}
        return [more | _typed(part, "output_text") for part in given]
    return [_typed(part, "input_text") for part in given]


def _typed(part: dict[str, Any], kind: str) -> dict[str, Any]:
    """A text part, with the type that it has in this kind of item."""
    known = part.get("type", "text")
    return part | {"type": kind} if known in (*_PLAIN_TEXTS, kind) else part
