# SPDX-License-Identifier: Apache-2.0
"""Builds a conversation from a sequence of parts, as in Responses and Messages."""

from __future__ import annotations

from dataclasses import dataclass, field

from rtp_llm.text.conversation import Message, Role, ToolCall


@dataclass
class _Turn:
    """Consecutive parts of one role."""

    role: Role
    texts: list[str] = field(default_factory=list)
    reasoning_texts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def message(self) -> Message:
        between = "\n\n" if self.role == "user" else "\n"
        return Message(
            self.role,
            between.join(self.texts) if self.texts else None,
            "\n".join(self.reasoning_texts) if self.reasoning_texts else None,
            tuple(self.calls),
        )


class Transcript:
    """Merges consecutive parts into messages as chat templates expect them.

    All system parts become one message, the first. Consecutive user parts become one message, as do
    consecutive assistant parts: reasoning, then text, then calls.
    """

    def __init__(self) -> None:
        self._system: list[str] = []
        self._turns: list[_Turn | Message] = []
        self._tools: dict[str, str] = {}

    def system(self, text: str) -> None:
        """Add an instruction, wherever it occurs."""
        self._system.append(text)

    def user(self, text: str) -> None:
        """Add a part of the user."""
        turn = self._last("user") or self._begin("user")
        turn.texts.append(text)

    def reasoning(self, text: str) -> None:
        """Add the assistant's reasoning."""
        turn = self._last("assistant")
        if turn is None or turn.texts or turn.calls:
            turn = self._begin("assistant")
        turn.reasoning_texts.append(text)

    def assistant(self, text: str) -> None:
        """Add the assistant's text."""
        turn = self._last("assistant")
        if turn is None or turn.calls:
            turn = self._begin("assistant")
        turn.texts.append(text)

    def call(self, call: ToolCall) -> None:
        """Add the assistant's tool call."""
        self._tools[call.id] = call.name
        turn = self._last("assistant") or self._begin("assistant")
        turn.calls.append(call)

    def result(self, call_id: str, text: str, name: str | None = None) -> None:
        """Add a tool result. `name`: the tool's name, if its call is not in the conversation."""
        name = self._tools.get(call_id, name)
        self._turns.append(Message("tool", text, tool_call_id=call_id, name=name))

    def messages(self) -> tuple[Message, ...]:
        """The conversation."""
        leading = [Message("system", "\n\n".join(self._system))] if self._system else []
        said = [turn.message() if isinstance(turn, _Turn) else turn for turn in self._turns]
        return (*leading, *said)

    def _last(self, role: Role) -> _Turn | None:
        last = self._turns[-1] if self._turns else None
        return last if isinstance(last, _Turn) and last.role == role else None

    def _begin(self, role: Role) -> _Turn:
        turn = _Turn(role)
        self._turns.append(turn)
        return turn
