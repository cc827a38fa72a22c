# SPDX-License-Identifier: Apache-2.0
"""Which tokens of an answer made its texts, and not its thoughts, its calls or their markers."""

from __future__ import annotations

from rtp_llm.text.sequence import SequenceText


class TextTokens:
    """For answers that a parser reads, whose `text` tracks offsets."""

    def __init__(self, text: SequenceText) -> None:
        self._text = text
        self._raw = ""  # what the parser has seen since it decided something

    def feed(self, piece: str) -> None:
        """The parser sees more."""
        self._raw += piece

    def skip(self) -> None:
        """The parser decided that it is something other than text."""
        self._raw = ""

    def take(self, said: str, undecided: int) -> tuple[int, ...]:
        """The parser decided that it is this text: the tokens among the last `undecided`, counted
        from the answer's first, that have a part in it."""
        offsets, count = self._text.offsets or [], self._text.num_tokens
        at = self._raw.rfind(said)
        first = count - undecided
        if at < 0:  # it does not have the model's own words
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
