# SPDX-License-Identifier: Apache-2.0
"""Llama 4 and OLMo 3: calls as Python writes them, with literals as arguments."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass

from rtp_llm.text.parsers.answer import MESSAGE_ENDS, Answer
from rtp_llm.text.parsers.source import Ended, Malformed, Markers, Source, Steps

_NAME = re.compile(r"[A-Za-z0-9_.-]*")
_DEPTH = 64
_CLOSES = {"(": ")", "{": "}", "[": "]"}
_PLAIN = re.compile(r"""[^"'{}\[\](),]*""")


@dataclass(frozen=True)
class PythonicCalls:
    """`[f(a=1), g()]` at the beginning of the answer, between `open` and `close` anywhere.

    ``lines``: between them each line is a call, without brackets. Without `open` only declared
    tools are called: the answer may be a list by itself.
    """

    open: str = ""
    close: str = ""
    lines: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.open, self.close)))

    def read(self, answer: Answer) -> Steps[None]:
        source = answer.source
        try:
            yield from source.spaces()
            if not self.lines and (yield from source.peek()) == "[":
                yield from self._list(answer, bare=True)
        except Malformed:
            yield answer.give_up()
        triggers = Markers.of(*self.markers[:1], *MESSAGE_ENDS)
        while True:
            yield from answer.text(triggers)
            try:
                yield from source.spaces()
                yield from self._lines(answer) if self.lines else self._list(answer, bare=False)
                if (yield from source.closing(self.close)):
                    answer.end_call()
            except Malformed:
                yield answer.give_up()

    def _list(self, answer: Answer, *, bare: bool) -> Steps[None]:
        yield from answer.source.expect("[")
        more = True
        while more:
            yield from answer.source.spaces()
            yield from _call(answer, bare=bare)
            yield from answer.source.spaces()
            more = (yield from answer.source.expect(",", "]")) == ","
        answer.end_call()
        yield from answer.source.spaces()

    def _lines(self, answer: Answer) -> Steps[None]:
        more = True
        while more:
            yield from _call(answer, bare=False)
            yield from answer.source.spaces()
            more = (yield from answer.source.peek()) not in ("", self.close[0])


def _call(answer: Answer, *, bare: bool) -> Steps[None]:
    """Read `name(key=value, ...)`. Raises Malformed, Ended."""
    source = answer.source
    name = yield from _name(source)
    if bare and name not in answer.tools:
        raise Malformed
    yield from source.spaces()
    yield from source.expect("(")
    before = "{"
    yield from source.spaces()
    end = ")" if (yield from source.literal(")")) else ","
    while end == ",":
        key = yield from _name(source)
        yield from source.spaces()
        yield from source.expect("=")
        value = yield from _value(source)
        if before == "{":
            yield answer.begin(name)
        yield answer.arguments(f"{before}{json.dumps(key)}: {value}")
        before = ", "
        end = yield from source.expect(",", ")")
        yield from source.spaces()
        if end == "," and (yield from source.literal(")")):
            end = ")"
    if before == "{":
        yield answer.begin(name)
        yield answer.arguments("{")
    yield answer.arguments("}")
    answer.end_call()


def _name(source: Source) -> Steps[str]:
    chunks: list[str] = []
    while (character := (yield from source.peek())) and _NAME.fullmatch(character):
        chunks.append(source.consume(_end_of_name))
    if not character:
        raise Ended
    name = "".join(chunks)
    if not name or name[0].isdigit():
        raise Malformed
    return name


def _value(source: Source) -> Steps[str]:
    """The JSON text of the literal before the next comma or parenthesis."""
    literal = _Literal()
    chunks: list[str] = []
    while not literal.done:
        if not (yield from source.peek()):
            raise Ended
        chunks.append(source.consume(literal.end_of))
        if literal.broken:
            raise Malformed
    return _json_of("".join(chunks).strip())


def _json_of(text: str) -> str:
    try:
        json.loads(text, parse_constant=_refuse)
        return text
    except (ValueError, RecursionError):
        pass
    try:
        spelled = json.dumps(ast.literal_eval(text), ensure_ascii=False, allow_nan=False)
        spelled.encode()
        return spelled
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise Malformed from error


def _refuse(constant: str) -> object:
    raise ValueError(constant)  # NaN and Infinity are not JSON


class _Literal:
    """Where a Python literal ends: before a comma or parenthesis outside of brackets."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._quote = ""
        self._escaped = False
        self.done = self.broken = False

    def end_of(self, text: str, start: int) -> int:
        """How far the literal goes in `text`, which continues at `start`."""
        at = start
        while at < len(text):
            if not self._quote:
                at = _end(_PLAIN, text, at)
            if at == len(text):
                break
            self._take(text[at])
            if self.done or self.broken:
                break
            at += 1
        return at

    def _take(self, character: str) -> None:
        if self._quote:
            if not self._escaped and character == self._quote:
                self._quote = ""
            self._escaped = not self._escaped and character == "\\"
        elif character in "\"'":
            self._quote = character
        elif character in _CLOSES:
            self._open.append(_CLOSES[character])
            self.broken = len(self._open) > _DEPTH
        elif not self._open:
            self.done = character in ",)"
            self.broken = not self.done
        elif character != ",":
            self.broken = self._open.pop() != character


def _end_of_name(text: str, start: int) -> int:
    return _end(_NAME, text, start)


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    found = pattern.match(text, start)
    return found.end() if found else start
