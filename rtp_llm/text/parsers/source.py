# SPDX-License-Identifier: Apache-2.0
"""Text that arrives in pieces, cut anywhere, as parsers read it.

A parser is a generator: it yields what the answer gains, and None when it needs more text. It
decides by the text alone, never by where that was cut, so its deltas do not depend on the cuts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import TypeAlias, TypeVar

from rtp_llm.text.parsers.deltas import OutputDelta

T = TypeVar("T")
Steps: TypeAlias = Generator[OutputDelta | None, None, T]

HELD_CHARACTERS = 1 << 20
"""So much may be read without being decided; then it is text."""
SPACES = " \t\r\n"


class Malformed(Exception):
    """The input does not match the form; the part of it that was not sent is text."""


class Ended(Exception):
    """The answer ended while an element was being read."""


class Markers:
    """Texts to look for, none of which is part of another. Raises ValueError otherwise."""

    def __init__(self, *texts: str) -> None:
        texts = tuple(dict.fromkeys(texts))
        for text in texts:
            if any(other != text and text in other for other in texts):
                raise ValueError(f"{text!r} is part of another marker")
        self._pattern = re.compile("|".join(map(re.escape, texts)) or "(?!)")
        self._beginnings = frozenset(text[:end] for text in texts for end in range(1, len(text)))
        self._longest = max(map(len, texts), default=1) - 1

    @staticmethod
    @lru_cache(256)
    def of(*texts: str) -> Markers:
        """Return the markers of these texts, made once and cached."""
        return Markers(*texts)

    def find(self, text: str, start: int) -> tuple[int, int]:
        """Where the first marker begins and ends; both are the text's end where there is none."""
        found = self._pattern.search(text, start)
        return (found.start(), found.end()) if found else (len(text), len(text))

    def undecided(self, text: str, start: int) -> int:
        """Length of the text's end that may be the beginning of a marker."""
        for length in range(min(self._longest, len(text) - start), 0, -1):
            if text[len(text) - length :] in self._beginnings:
                return length
        return 0


class Source:
    """The text that has come, how far it is read, and what of that was not sent yet."""

    def __init__(self, held: int = HELD_CHARACTERS) -> None:
        self._text = ""
        self._at = 0
        self._ended = False
        self._limit = held
        self._unsent: list[str] = []
        self._unsent_length = 0

    def push(self, text: str) -> None:
        """Append text that has arrived."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self) -> None:
        """Mark the end of the text: what is left is final."""
        self._ended = True

    def unsent(self) -> str:
        """Return the text read since the last call; the caller sends or drops it."""
        text = "".join(self._unsent)
        self._unsent.clear()
        self._unsent_length = 0
        return text

    def rest(self) -> str:
        """The answer is over: all that was not sent, read or not."""
        text = self.unsent() + self._text[self._at :]
        self._at = len(self._text)
        return text

    def drop_last(self) -> None:
        """Forget the piece that was read last: it is never sent."""
        self._unsent_length -= len(self._unsent.pop())

    def unread_last(self) -> None:
        """Read the piece that was read last again."""
        self._at -= len(self._unsent[-1])
        self.drop_last()

    def more(self) -> Steps[None]:
        """Wait for more text. Raises Ended if none comes."""
        if self._ended:
            raise Ended
        yield None

    def peek(self) -> Steps[str]:
        """The next character, unread; empty at the end of the answer."""
        while self._at == len(self._text):
            if self._ended:
                return ""
            yield None
        return self._text[self._at]

    def literal(self, text: str) -> Steps[bool]:
        """Whether `text` comes next; then it is read."""
        while True:
            if self._text.startswith(text, self._at):
                self._read(len(text))
                return True
            rest = self._text[self._at : self._at + len(text)]
            if self._ended or not text.startswith(rest):
                return False
            yield None

    def closing(self, text: str) -> Steps[bool]:
        """Like `literal`, but the answer may end inside of `text`."""
        if (yield from self.literal(text)):
            return True
        rest = self._text[self._at :]
        if not rest or not self._ended or not text.startswith(rest):
            return False
        self._read(len(rest))
        return True

    def expect(self, *texts: str) -> Steps[str]:
        """Read the one of `texts` that comes next. Raises Malformed, or Ended inside of one."""
        while True:
            for text in texts:
                if self._text.startswith(text, self._at):
                    self._read(len(text))
                    return text
            rest = self._text[self._at :]
            if not any(text.startswith(rest) for text in texts):
                raise Malformed
            yield from self.more()

    def spaces(self) -> Steps[None]:
        """Read white space, if any comes next."""
        while (character := (yield from self.peek())) and character in SPACES:
            rest = self._text[self._at :]
            self._read(self._room(len(rest) - len(rest.lstrip(SPACES))))

    def until(self, markers: Markers, send: Callable[[str], OutputDelta | None]) -> Steps[str]:
        """Read up to the first marker and past it; which one. Raises Ended.

        `send` gets each piece before the marker and gives the delta that is made of it, if any.
        """
        while True:
            begin, end = markers.find(self._text, self._at)
            found = end > begin
            if not found and not self._ended:
                begin -= markers.undecided(self._text, self._at)
            while begin > self._at:
                chunk = self._read(self._room(begin - self._at))
                if (delta := send(chunk)) is not None:
                    yield delta
            if found:
                return self._read(end - begin)
            yield from self.more()

    def text_before(self, markers: Markers) -> Steps[tuple[str, str]]:
        """The text up to the first marker and that marker; both are read. Raises Ended."""
        chunks: list[str] = []
        marker = yield from self.until(markers, chunks.append)
        return "".join(chunks), marker

    def consume(self, end_of: Callable[[str, int], int]) -> str:
        """Read up to `end_of(text, start)`, as far as text has come and may be held."""
        room = self._room(len(self._text) - self._at)
        end = end_of(self._text[: self._at + room], self._at)
        return self._read(end - self._at)

    def _room(self, length: int) -> int:
        """How much of `length` may be read at once. Raises Malformed if too much is held."""
        if self._unsent_length >= self._limit:
            raise Malformed
        return min(length, self._limit - self._unsent_length)

    def _read(self, length: int) -> str:
        chunk = self._text[self._at : self._at + length]
        self._at += length
        self._unsent.append(chunk)
        self._unsent_length += length
        return chunk
