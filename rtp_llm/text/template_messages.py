# SPDX-License-Identifier: Apache-2.0
"""Conversations as chat templates take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rtp_llm.text.conversation import Message, Tool, ToolCall


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as dictionaries; ChatTemplate makes of them what its template takes."""
    return [_message(message) for message in messages]


def template_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The tools as a template's variable `tools`, in OpenAI's shape."""
    return [{"type": "function", "function": _function(tool)} for tool in tools]


def _message(message: Message) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        plain["reasoning_content"] = message.reasoning
    if message.tool_calls:
        plain["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        plain["name"] = message.name
    return plain


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _function(tool: Tool) -> dict[str, Any]:
    # Whether a tool is strict is not for the model, which never saw the word in its training.
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters or {"type": "object", "properties": {}},
    }
