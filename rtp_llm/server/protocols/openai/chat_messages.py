# SPDX-License-Identifier: Apache-2.0
"""Converts OpenAI's messages to a conversation."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from rtp_llm.server.turn.parse import is_harmless, refused
from rtp_llm.server.types import openai_bodies as protocol
from rtp_llm.server.types.errors import bad_request
from rtp_llm.text.conversation import Message, Role, ToolCall

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}

_ROLE = re.compile(r"[A-Za-z0-9_-]{1,64}")


def conversation(messages: Sequence[protocol.Message]) -> tuple[Message, ...]:
    """Convert messages; raises ApiError 400 for anything but texts and tool calls."""
    if not messages:
        raise bad_request("messages: must not be empty.", param="messages", code="empty_array")
    return tuple(_message(message, f"messages[{at}]") for at, message in enumerate(messages))


def _message(message: protocol.Message, place: str) -> Message:
    role = _ROLES.get(message.role, message.role)
    if not _ROLE.fullmatch(role):
        raise bad_request(
            f"{place}.role: must be a word of at most 64 letters, digits, - and _.",
            f"{place}.role",
            "invalid_value",
        )
    if not is_harmless("audio", message.audio):
        raise refused("messages.content", f"{place}.audio")
    if message.tool_calls and role != "assistant":
        raise bad_request(
            f"{place}.tool_calls: only the assistant calls tools.",
            f"{place}.tool_calls",
            "invalid_value",
        )
    return Message(
        role=role,
        content=_content(message, place),
        reasoning=message.reasoning_content or message.reasoning,
        tool_calls=tuple(map(_call, message.tool_calls or ())),
        tool_call_id=message.tool_call_id,
        name=message.name,
    )


def _call(call: protocol.MessageToolCall) -> ToolCall:
    arguments = call.function.arguments
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    return ToolCall(call.id, call.function.name, text)


def _content(message: protocol.Message, place: str) -> str | None:
    content = message.content
    if content is msgspec.UNSET and message.role != "assistant":
        raise bad_request(
            f"{place}.content is required.", f"{place}.content", "missing_required_parameter"
        )
    if content is msgspec.UNSET or content is None:
        return message.refusal
    if isinstance(content, str):
        return content or message.refusal or ""
    texts = []
    for index, part in enumerate(content):
        param = f"{place}.content[{index}]"
        if part.get("type") not in ("text", "refusal"):
            raise refused("messages.content", param)
        text = part.get(part["type"])
        if not isinstance(text, str):
            raise bad_request(f"{param}.text: expected str.", f"{param}.text", "invalid_type")
        texts.append(text)
    return "\n".join(texts)
