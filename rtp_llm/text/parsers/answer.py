# SPDX-License-Identifier: Apache-2.0
"""An answer while it is read: text, and calls that interrupt it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rtp_llm.text.conversation import Tool
from rtp_llm.text.parsers.deltas import OutputDelta, TextDelta, ToolArguments, ToolCallBegin
from rtp_llm.text.parsers.source import SPACES, Malformed, Markers, Source, Steps

# What ends a message or stands around its text, in whichever family: never part of that.
MESSAGE_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end_of_sentence|>",
    "<｜end▁of▁sentence｜>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|eot|>",
    "<|eom|>",
    "<|user|>",
    "<|observation|>",
    "<end_of_turn>",
    "<turn|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|START_RESPONSE|>",
    "<|END_RESPONSE|>",
    "[e~[",
)


class Answer:
    """What an answer has so far, and the source that the rest is read from.

    White space before the first text, around calls and after the last one is held: it is sent with
    the text that follows, and dropped if a call follows.
    """

    def __init__(
        self, source: Source, tools: Sequence[Tool] = (), *, only_tools: bool = False
    ) -> None:
        """``only_tools``: nothing but these may be called."""
        self.source = source
        self.tools = {tool.name: tool for tool in tools}
        self._only_tools = only_tools
        self._calls = 0
        self._in_call = False
        self._only_spaces = True

    @property
    def in_call(self) -> bool:
        """Whether a call began and is not complete."""
        return self._in_call

    def text(self, triggers: Markers) -> Steps[str]:
        """Send text up to one of `triggers`; which. `triggers` has MESSAGE_ENDS among it."""
        while True:
            try:
                marker = yield from self.source.until(triggers, self.send)
            except Malformed:  # so much white space is text
                yield self.give_up()
                continue
            if marker not in MESSAGE_ENDS:
                return marker
            self.source.drop_last()

    def calls(self, triggers: Markers, read: Callable[[Answer], Steps[None]]) -> Steps[None]:
        """The whole answer: text, and what `read` reads after each of `triggers`.

        What `read` finds malformed is text after all.
        """
        while True:
            yield from self.text(triggers)
            try:
                yield from read(self)
            except Malformed:
                yield self.give_up()

    def send(self, chunk: str) -> TextDelta | None:
        """More text, which was just read; None while there is only white space."""
        if self._only_spaces and not chunk.strip(SPACES):
            return None
        self._only_spaces = False
        return TextDelta(self.source.unsent())

    def begin(self, name: str, id: str = "") -> ToolCallBegin:
        """A call begins: its text, and the white space before it, are not part of the content.

        Raises Malformed for a tool that may not be called.
        """
        if self._only_tools and name not in self.tools:
            raise Malformed
        self.source.unsent()
        self._in_call = True
        self._calls += 1
        return ToolCallBegin(self._calls - 1, name, id)

    def arguments(self, text: str) -> ToolArguments:
        """More of the arguments of the call that began last."""
        self.source.unsent()
        return ToolArguments(self._calls - 1, text)

    def end_call(self) -> None:
        """The call is complete, and so is what was read for it."""
        self.source.unsent()
        self._in_call = False
        self._only_spaces = True

    def give_up(self) -> TextDelta:
        """What was read and not sent is text after all."""
        self._in_call = self._only_spaces = False
        return TextDelta(self.source.unsent())

    def rest(self) -> OutputDelta | None:
        """The answer is over: what was not sent, unless it is a call's markup."""
        rest = self.source.rest()
        if not rest or self._in_call or (self._calls and not rest.strip(SPACES)):
            return None
        return TextDelta(rest)


def clean_name(text: str) -> str:
    """A tool's name without the spaces around it. Raises Malformed for what can be none."""
    name = text.strip()
    if not name or any(character.isspace() or character in "<>" for character in name):
        raise Malformed
    return name
