"""Typed deltas as fields of a chat's messages and chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rtp_llm.text.parsers.deltas import (
    OutputDelta,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolCallBegin,
)


class MessageParts:
    """`reasoning_fields`: those of a message that have the thinking."""

    def __init__(self, reasoning_fields: Sequence[str]) -> None:
        self._reasoning_fields = reasoning_fields

    def piece(self, part: OutputDelta) -> dict[str, Any]:
        """What a chunk's `delta` says of it; empty: it is not shown."""
        if isinstance(part, TextDelta):
            return {"content": part.text}
        if isinstance(part, ReasoningDelta):
            return dict.fromkeys(self._reasoning_fields, part.text)
        if isinstance(part, ToolArguments):
            return {"tool_calls": [{"index": part.index, "function": {"arguments": part.text}}]}
        function = {"name": part.name, "arguments": ""}
        call = {"index": part.index, "id": part.id, "type": "function", "function": function}
        return {"tool_calls": [call]}

    def message(self, parts: Sequence[OutputDelta]) -> dict[str, Any]:
        """All parts of an answer together, as fields of its message."""
        text = "".join(each.text for each in parts if isinstance(each, TextDelta))
        thinking = "".join(each.text for each in parts if isinstance(each, ReasoningDelta))
        message: dict[str, Any] = {"content": text or None}
        if thinking:
            message |= dict.fromkeys(self._reasoning_fields, thinking)
        calls = _calls(parts)
        return message | ({"tool_calls": calls} if calls else {})


def _calls(parts: Sequence[OutputDelta]) -> list[dict[str, Any]]:
    arguments: dict[int, list[str]] = {}
    for each in parts:
        if isinstance(each, ToolArguments):
            arguments.setdefault(each.index, []).append(each.text)
    return [
        {
            "id": each.id,
            "type": "function",
            "function": {"name": each.name, "arguments": "".join(arguments.get(each.index, ()))},
        }
        for each in parts
        if isinstance(each, ToolCallBegin)
    ]
