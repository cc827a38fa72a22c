# SPDX-License-Identifier: Apache-2.0
"""Find stop strings in text that arrives in pieces, holding back what may still become one."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes text through until one of `stops` is complete; the stop itself is not passed on.

    The stop that is completed first wins; of several completed by the same character, the longest.
    So the result does not depend on how the text was cut into pieces. Text that could be the
    beginning of a stop is held back until it is decided.

    Raises ValueError when a stop is empty.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self._stops = tuple(stops)
        self._fallbacks = [_fallback_table(stop) for stop in self._stops]
        self._lengths = [0] * len(self._stops)
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Take the next piece; return what is certain to be visible. "" after a match."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        for position in range(len(self._held), len(text)):
            found = self._advance(text[position])
            if found is not None:
                self.matched = found
                self._held = ""
                end = position + 1
                return text[: end if self._include else end - len(found)]
        return self._release(text)

    def skip(self, text: str) -> str:
        """Take a piece in which no stop may be complete; one may begin in it."""
        if not self._stops:
            return text
        for character in text:
            self._advance(character)
        return self._release(self._held + text)

    def _release(self, text: str) -> str:
        """Hold back the end that may become a stop; return what comes before it."""
        keep = len(text) - max(self._lengths)
        self._held = text[keep:]
        return text[:keep]

    def flush(self) -> str:
        """The text is over: return what was held back."""
        held, self._held = self._held, ""
        self._lengths = [0] * len(self._stops)
        return held

    def _advance(self, character: str) -> str | None:
        """Move each stop's automaton (Knuth, Morris, Pratt) by one character."""
        found: str | None = None
        for index, stop in enumerate(self._stops):
            length = self._lengths[index]
            table = self._fallbacks[index]
            while length and stop[length] != character:
                length = table[length - 1]
            if stop[length] == character:
                length += 1
            if length == len(stop):
                found = stop if found is None or length > len(found) else found
                length = table[length - 1]
            self._lengths[index] = length
        return found


def _fallback_table(pattern: str) -> list[int]:
    """table[i]: length of the longest proper prefix of pattern that ends at character i."""
    table = [0] * len(pattern)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[index] != pattern[length]:
            length = table[length - 1]
        if pattern[index] == pattern[length]:
            length += 1
        table[index] = length
    return table
