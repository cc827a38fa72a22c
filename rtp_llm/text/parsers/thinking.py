# SPDX-License-Identifier: Apache-2.0
"""Reasoning between two tags at the beginning of an answer."""

from __future__ import annotations

from dataclasses import dataclass

from rtp_llm.text.parsers.answer import MESSAGE_ENDS
from rtp_llm.text.parsers.deltas import ReasoningDelta
from rtp_llm.text.parsers.source import SPACES, Malformed, Markers, Source, Steps


@dataclass(frozen=True)
class Thinking:
    """The tags around reasoning.

    ``also_ends``: texts that begin a call or the answer, which some models write without `end`
    before them. ``stray_end``: an answer without reasoning may begin with `end`.
    """

    begin: str
    end: str
    also_ends: tuple[str, ...] = ()
    stray_end: bool = False

    def read(self, source: Source, is_open: bool) -> Steps[None]:
        """Send the reasoning, if there is any, from the start of the answer or after its tag.

        Leading white space is read; without reasoning it stays unsent. Raises Ended.
        """
        yield from source.spaces()
        if (yield from source.literal(self.begin)):
            source.unsent()
        elif not is_open:
            if self.stray_end and (yield from source.literal(self.end)):
                source.unsent()
            return
        yield from self._to_end(source)

    def _to_end(self, source: Source) -> Steps[None]:
        markers = Markers.of(self.end, *self.also_ends, *MESSAGE_ENDS)
        only_spaces = True

        def send(chunk: str) -> ReasoningDelta | None:
            nonlocal only_spaces
            only_spaces = only_spaces and not chunk.strip(SPACES)
            return None if only_spaces else ReasoningDelta(source.unsent())

        while True:
            try:
                marker = yield from source.until(markers, send)
            except Malformed:  # so much white space is reasoning
                yield ReasoningDelta(source.unsent())
                continue
            if marker in (self.end, *self.also_ends):
                break
            source.drop_last()
        if marker != self.end:
            source.unread_last()
        source.unsent()
