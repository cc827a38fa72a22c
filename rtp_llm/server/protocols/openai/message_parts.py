# SPDX-License-Identifier: Apache-2.0
"""Converts typed deltas to fields of a chat's messages and chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rtp_llm.server.types.jobs import ChatResponseOptions
from rtp_llm.text.parsers.deltas import (
    OutputDelta,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolCallBegin,
)


class MessageParts:
    """Shows calls as `tool_calls`, or in the deprecated form as `function_call`."""

    def __init__(self, response_options: ChatResponseOptions) -> None:
        self._reasoning_fields = response_options.reasoning_fields
        self._functions = response_options.functions

    def finish(self, reason: str | None) -> str | None:
        """The finish reason, in the same form."""
        return "function_call" if self._functions and reason == "tool_calls" else reason

    def piece(self, part: OutputDelta) -> dict[str, Any]:
        """The fields of a chunk's `delta` for a part; empty if it is not shown."""
        if isinstance(part, TextDelta):
            return {"content": part.text}
        if isinstance(part, ReasoningDelta):
            return dict.fromkeys(self._reasoning_fields, part.text)
        if isinstance(part, ToolArguments):
            if self._functions:
                return {"function_call": {"arguments": part.text}}
            return {"tool_calls": [{"index": part.index, "function": {"arguments": part.text}}]}
        function = {"name": part.name, "arguments": ""}
        if self._functions:
            return {"function_call": function}
        call = {"index": part.index, "id": part.id, "type": "function", "function": function}
        return {"tool_calls": [call]}

    def message(self, parts: Sequence[OutputDelta]) -> dict[str, Any]:
        """The fields of a message for all parts of an answer."""
        text = "".join(each.text for each in parts if isinstance(each, TextDelta))
        thinking = "".join(each.text for each in parts if isinstance(each, ReasoningDelta))
        message: dict[str, Any] = {"content": text or None}
        if thinking:
            message |= dict.fromkeys(self._reasoning_fields, thinking)
        calls = _calls(parts)
        if calls and self._functions:
            return message | {"function_call": calls[0]["function"]}
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
