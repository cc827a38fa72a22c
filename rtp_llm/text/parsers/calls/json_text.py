# SPDX-License-Identifier: Apache-2.0
"""JSON as the model writes it: found to its end and passed on byte by byte."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from rtp_llm.text.parsers.deltas import OutputDelta
from rtp_llm.text.parsers.source import Ended, Malformed, Source, Steps

_DEPTH = 256
_PLAIN = re.compile(r'[^"{}\[\]]*')
_IN_STRING = re.compile(r'[^"\\]*')
_SCALAR = re.compile(r"[-+.0-9A-Za-z]*")
_CLOSES = {"{": "}", "[": "]"}


class _Nested:
    """Where an object, array or string ends. Brackets are matched; what is between is not read."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._in_string = self._escaped = False
        self.done = self.broken = False

    def end_of(self, text: str, start: int) -> int:
        """How far the value goes in `text`, which continues at `start`."""
        at = start
        while at < len(text) and not self.done:
            if self._escaped:
                at, self._escaped = at + 1, False
                continue
            at = _end(_IN_STRING if self._in_string else _PLAIN, text, at)
            if at < len(text):
                self._take(text[at])
                if self.broken:
                    break
                at += 1
        return at

    def _take(self, character: str) -> None:
        if character == "\\":
            self._escaped = True
            return
        if character == '"':
            self._in_string = not self._in_string
        elif character in _CLOSES:
            self._open.append(_CLOSES[character])
            self.broken = len(self._open) > _DEPTH
        else:
            self.broken = self._open.pop() != character
        self.done = not self._open and not self._in_string


def nested(source: Source, send: Callable[[str], OutputDelta | None]) -> Steps[None]:
    """Read an object, an array or a string; each piece of its text goes through `send`.

    Raises Malformed where it is none, or its brackets do not match; Ended inside of it.
    """
    if not (first := (yield from source.peek())) or first not in '{["':
        raise Malformed
    value = _Nested()
    while not value.done:
        if not (yield from source.peek()):
            raise Ended
        chunk = source.consume(value.end_of)
        if chunk and (delta := send(chunk)) is not None:
            yield delta
        if value.broken:
            raise Malformed


def string(source: Source) -> Steps[str]:
    """Read a string; what it says. Raises Malformed where it is none."""
    if (yield from source.peek()) not in ('"', ""):
        raise Malformed
    chunks: list[str] = []
    yield from nested(source, chunks.append)
    try:
        text: str = json.loads("".join(chunks), strict=False)
        text.encode()  # half a surrogate pair is not valid text
        return text
    except ValueError as error:
        raise Malformed from error


def skip(source: Source) -> Steps[None]:
    """Read any value. Raises Malformed where there is none."""
    first = yield from source.peek()
    if first and first in '{["':
        yield from nested(source, lambda chunk: None)
        return
    length = 0
    while (character := (yield from source.peek())) and _SCALAR.fullmatch(character):
        length += len(source.consume(lambda text, at: _end(_SCALAR, text, at)))
    if not length:
        raise Malformed


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    found = pattern.match(text, start)
    return found.end() if found else start
