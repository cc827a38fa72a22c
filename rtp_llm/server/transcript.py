# SPDX-License-Identifier: Apache-2.0
"""A conversation from its parts, as Responses and Messages have them: one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field

from rtp_llm.text.conversation import Message, Role, ToolCall


@dataclass
class _Turn:
    """What one role says in a row."""

    role: Role
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def message(self) -> Message:
        between = "\n\n" if self.role == "user" else "\n"
        return Message(
            self.role,
            between.join(self.texts) if self.texts else None,
            "\n".join(self.thoughts) if self.thoughts else None,
            tuple(self.calls),
        )


class Transcript:
    """Parts in their order to messages as chat templates expect them.

    All that the system says is one message, the first. What the user says in a row is one message,
    and so is what the assistant does in a row: its reasoning, then its text, then its calls.
    """

    def __init__(self) -> None:
        self._system: list[str] = []
        self._turns: list[_Turn | Message] = []
        self._tools: dict[str, str] = {}

    def system(self, text: str) -> None:
        """An instruction, wherever it stands."""
        self._system.append(text)

    def user(self, text: str) -> None:
        """What the user says."""
        turn = self._last("user") or self._begin("user")
        turn.texts.append(text)

    def reasoning(self, text: str) -> None:
        """What the assistant thought."""
        turn = self._last("assistant")
        if turn is None or turn.texts or turn.calls:
            turn = self._begin("assistant")
        turn.thoughts.append(text)

    def assistant(self, text: str) -> None:
        """What the assistant said."""
        turn = self._last("assistant")
        if turn is None or turn.calls:
            turn = self._begin("assistant")
        turn.texts.append(text)

    def call(self, call: ToolCall) -> None:
        """A tool that the assistant called."""
        self._tools[call.id] = call.name
        turn = self._last("assistant") or self._begin("assistant")
        turn.calls.append(call)

    def result(self, call_id: str, text: str, name: str | None = None) -> None:
        """What a tool answered. `name`: the tool's, where the call is not there to tell."""
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
