# SPDX-License-Identifier: Apache-2.0
"""Finds the tokens of an answer's texts, as opposed to its reasoning, calls and markers."""

from __future__ import annotations

from rtp_llm.text.sequence import SequenceText


class TextTokens:
    """Tracks the text tokens of a parsed answer whose `text` tracks offsets."""

    def __init__(self, text: SequenceText) -> None:
        self._text = text
        self._raw = ""  # input of the parser since its last decision

    def feed(self, piece: str) -> None:
        """Record text that was fed to the parser."""
        self._raw += piece

    def skip(self) -> None:
        """Record that the parser's decision was something other than text."""
        self._raw = ""

    def take(self, said: str, undecided: int) -> tuple[int, ...]:
        """Record that the parser decided on this text; returns the tokens among the last
        `undecided` that contribute to it, by their index in the answer."""
        offsets, count = self._text.offsets or [], self._text.num_tokens
        at = self._raw.rfind(said)
        first = count - undecided
        if at < 0:  # the text is not a substring of the model's output
            self._raw = ""
            return tuple(range(first, count))
        begin = self._text.visible - len(self._raw) + at
        end = begin + len(said)
        self._raw = self._raw[at + len(said) :]
        ends = [*offsets[first + 1 : count], self._text.visible]
        return tuple(
            number
            for number, stop in enumerate(ends, first)
            if stop > begin and offsets[number] < end
        )
