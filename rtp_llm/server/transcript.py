"""A conversation from its parts, as Responses and Messages have them: one after the other."""

from __future__ import annotations

from dataclasses import replace

from rtp_llm.text.conversation import Message, ToolCall


class Transcript:
    """Parts in their order to messages as chat templates expect them.

    All that the system says is one message, the first. What the user says in a row is one message,
    and so is what the assistant does in a row: its reasoning, then its text, then its calls.
    """

    def __init__(self) -> None:
        self._system: list[str] = []
        self._messages: list[Message] = []
        self._tools: dict[str, str] = {}

    def system(self, text: str) -> None:
        """An instruction, wherever it stands."""
        self._system.append(text)

    def user(self, text: str) -> None:
        """What the user says."""
        last = self._last("user")
        if last is None:
            self._messages.append(Message("user", text))
        else:
            self._messages[-1] = replace(last, content=f"{last.content}\n\n{text}")

    def reasoning(self, text: str) -> None:
        """What the assistant thought."""
        last = self._last("assistant")
        if last is None or last.content is not None or last.tool_calls:
            self._messages.append(Message("assistant", reasoning=text))
        else:
            self._messages[-1] = replace(last, reasoning=f"{last.reasoning}\n{text}")

    def assistant(self, text: str) -> None:
        """What the assistant said."""
        last = self._last("assistant")
        if last is None or last.tool_calls:
            self._messages.append(Message("assistant", text))
        else:
            said = text if last.content is None else f"{last.content}\n{text}"
            self._messages[-1] = replace(last, content=said)

    def call(self, call: ToolCall) -> None:
        """A tool that the assistant called."""
        self._tools[call.id] = call.name
        last = self._last("assistant")
        if last is None:
            self._messages.append(Message("assistant", tool_calls=(call,)))
        else:
            self._messages[-1] = replace(last, tool_calls=(*last.tool_calls, call))

    def result(self, call_id: str, text: str) -> None:
        """What a tool answered."""
        name = self._tools.get(call_id)
        self._messages.append(Message("tool", text, tool_call_id=call_id, name=name))

    def messages(self) -> tuple[Message, ...]:
        """The conversation."""
        leading = [Message("system", "\n\n".join(self._system))] if self._system else []
        return (*leading, *self._messages)

    def _last(self, role: str) -> Message | None:
        last = self._messages[-1] if self._messages else None
        return last if last is not None and last.role == role else None
