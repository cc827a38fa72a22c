# SPDX-License-Identifier: Apache-2.0
"""Converts the messages of /api/chat to a conversation."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rtp_llm.server.protocols.ollama.protocol import OllamaMessage, OllamaToolCall
from rtp_llm.server.turn.parse import refused
from rtp_llm.server.turn.transcript import Transcript
from rtp_llm.server.types.errors import bad_request
from rtp_llm.text.conversation import Message, ToolCall


def check_no_images(images: Sequence[str] | None, place: str) -> None:
    """Raise ApiError 400 for images, as only text is supported."""
    if images:
        raise refused("messages.content", place)


class Conversation:
    """Reads messages in order."""

    def __init__(self) -> None:
        self._transcript = Transcript()
        self._calls: list[ToolCall] = []
        """Calls without a result."""
        self._made = 0

    def read(self, messages: Sequence[OllamaMessage]) -> tuple[Message, ...]:
        """Read the conversation; raises ApiError 400 naming the invalid message."""
        for at, message in enumerate(messages):
            self._take(message, f"messages[{at}]")
        return self._transcript.messages()

    def _take(self, message: OllamaMessage, place: str) -> None:
        check_no_images(message.images, f"{place}.images")
        content = message.content or ""
        if message.tool_calls and message.role != "assistant":
            place += ".tool_calls"
            raise bad_request(f"{place}: only the assistant calls tools.", place, "invalid_value")
        if message.role == "system":
            if content:
                self._transcript.system(content)
        elif message.role == "user":
            self._transcript.user(content)
        elif message.role == "tool":
            self._result(message, content)
        else:
            self._assistant(message, content)

    def _assistant(self, message: OllamaMessage, content: str) -> None:
        if message.thinking:
            self._transcript.reasoning(message.thinking)
        if content or not (message.thinking or message.tool_calls):
            self._transcript.assistant(content)
        for call in message.tool_calls or ():
            made = self._call(call)
            self._calls.append(made)
            self._transcript.call(made)

    def _call(self, call: OllamaToolCall) -> ToolCall:
        """A call; without an id it gets one of nine letters and digits, as templates need that."""
        self._made += 1
        arguments = msgspec.json.encode(call.function.arguments).decode()
        return ToolCall(call.id or f"call{self._made:05d}", call.function.name, arguments)

    def _result(self, message: OllamaMessage, content: str) -> None:
        answered = next((call for call in self._calls if _answers(message, call)), None)
        if answered is not None:
            self._calls.remove(answered)
            self._transcript.result(answered.id, content)
            return
        self._made += 1
        call_id = message.tool_call_id or f"call{self._made:05d}"
        self._transcript.result(call_id, content, message.tool_name)


def _answers(message: OllamaMessage, call: ToolCall) -> bool:
    """Whether a result belongs to the call: by its id, else by its tool, else by its position."""
    if message.tool_call_id:
        return message.tool_call_id == call.id
    return not message.tool_name or message.tool_name == call.name
