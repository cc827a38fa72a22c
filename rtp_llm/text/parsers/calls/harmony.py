# SPDX-License-Identifier: Apache-2.0
"""gpt-oss: messages on channels, each with a header (the Harmony format)."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass

from rtp_llm.text.parsers.answer import Answer
from rtp_llm.text.parsers.calls.json_text import nested
from rtp_llm.text.parsers.deltas import ReasoningDelta, ToolArguments
from rtp_llm.text.parsers.source import Ended, Malformed, Markers, Steps

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_HEADER_ENDS = Markers.of(MESSAGE, END, RETURN, CALL)
_BODY_ENDS = Markers.of(START, CHANNEL, END, RETURN, CALL)


@dataclass(frozen=True)
class Harmony:
    """The channel "analysis" is reasoning, messages to functions are calls, all others are text.

    The prompt ends after `<|start|>assistant`, or within a message (analysis if ``in_analysis``).
    Without ``calls`` messages to functions are text, too.
    """

    in_analysis: bool = False
    calls: bool = True
    markers: tuple[str, ...] = (START, CHANNEL, CONSTRAIN, MESSAGE, END, RETURN, CALL)

    def read(self, answer: Answer) -> Steps[None]:
        if self.in_analysis:
            yield from self._reasoning(answer)
        while True:
            try:
                yield from answer.source.spaces()
                # A header, or the text of a message that has none: the prompt had it.
                yield from answer.source.expect(START, CHANNEL, CONSTRAIN, MESSAGE, "to=")
                answer.source.unread_last()
                yield from self._message(answer)
            except Malformed:
                yield from self._text(answer)

    def _message(self, answer: Answer) -> Steps[None]:
        """Read a header and the message after it."""
        source = answer.source
        try:
            header, end = yield from source.text_before(_HEADER_ENDS)
        except Ended:
            source.rest()
            raise
        source.unsent()
        if end != MESSAGE:
            return
        recipient = _RECIPIENT.search(header)
        channel = _CHANNEL.search(header)
        if name := self._function(answer, recipient[1] if recipient else ""):
            yield from self._call(answer, name)
        elif channel and channel[1] == "analysis":
            yield from self._reasoning(answer)
        else:
            yield from self._text(answer)

    def _function(self, answer: Answer, recipient: str) -> str:
        """The function that a message is for; empty: for none."""
        if not self.calls:
            return ""
        if recipient.startswith("functions."):
            return recipient.removeprefix("functions.")
        return recipient if recipient in answer.tools else ""

    def _call(self, answer: Answer, name: str) -> Steps[None]:
        yield answer.begin(name)
        empty = True

        def send(chunk: str) -> ToolArguments:
            nonlocal empty
            empty = False
            return answer.arguments(chunk)

        yield from answer.source.spaces()
        with suppress(Malformed):  # JSON's strings may hold any marker
            yield from nested(answer.source, send)
        end = yield from answer.source.until(_BODY_ENDS, send)
        self._close(answer, end)
        if empty:
            yield answer.arguments("{}")
        answer.end_call()

    def _text(self, answer: Answer) -> Steps[None]:
        while True:
            try:
                end = yield from answer.source.until(_BODY_ENDS, answer.send)
                break
            except Malformed:  # so much white space is text
                yield answer.give_up()
        self._close(answer, end)

    def _reasoning(self, answer: Answer) -> Steps[None]:
        source = answer.source
        end = yield from source.until(_BODY_ENDS, lambda chunk: ReasoningDelta(source.unsent()))
        self._close(answer, end)

    def _close(self, answer: Answer, end: str) -> None:
        """A message is over; a header that follows without an end is read again."""
        if end in (START, CHANNEL):
            answer.source.unread_last()
        else:
            answer.source.drop_last()
