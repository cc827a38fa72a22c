# SPDX-License-Identifier: Apache-2.0
"""The parser of GBNF, the EBNF of llama.cpp and xgrammar."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from rtp_llm.text.grammar.errors import GrammarError

MAX_DEPTH = 50
MAX_REPEATS = 10_000
LAST = 0x10FFFF

Ranges = tuple[tuple[int, int], ...]
"""Code points from first to last, ascending, without surrogates."""


@dataclass(frozen=True)
class Characters:
    """One character of a set."""

    ranges: Ranges


@dataclass(frozen=True)
class Reference:
    """A reference to another rule: matches what `rule` matches."""

    rule: str


@dataclass(frozen=True)
class Choice:
    """Matches any one of `sequences`, each a row of terms."""

    sequences: tuple[tuple[Term, ...], ...]


@dataclass(frozen=True)
class Repeat:
    """A term from `minimum` to `maximum` times; None: any number."""

    term: Term
    minimum: int
    maximum: int | None


Term = Characters | Reference | Choice | Repeat

_RULE = re.compile(r"([A-Za-z_][\w.-]*)[ \t]*(\[[^\]\n]*\])?[ \t\r\n]*::=", re.ASCII)
_NAME = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_REPEAT = re.compile(r"[*+?]|\{\s*(\d{1,9})\s*(?:(,)\s*(\d{0,9})\s*)?\}", re.ASCII)
_HEX = re.compile(r"x([0-9A-Fa-f]{2,})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})")
_CONTROLS = dict(zip("abefnrtv0", (7, 8, 27, 12, 10, 13, 9, 11, 0), strict=True))
_PUNCTUATION = frozenset("\"\\/'?")
_CLASS_PUNCTUATION = _PUNCTUATION | frozenset("^$.*+()[]{}|-")


def parse(text: str) -> dict[str, Choice]:
    """The rules by name; GrammarError with the line of what is wrong."""
    return _Parser(text).rules()


def is_ebnf(text: str) -> bool:
    """Whether a line begins a rule as GBNF does; Lark has a colon."""
    return any(_RULE.match(line.lstrip()) for line in text.splitlines())


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def fail(self, reason: str) -> NoReturn:
        """GrammarError, with the line."""
        line = self.text.count("\n", 0, self.at) + 1
        raise GrammarError(f"grammar, line {line}: {reason}", "grammar")

    def rules(self) -> dict[str, Choice]:
        found: dict[str, Choice] = {}
        self._skip()
        while self.at < len(self.text):
            match = _RULE.match(self.text, self.at)
            if match is None:
                self.fail("a rule (name ::= ...) is expected here")
            if match[2]:
                self.fail(f"the rule option {match[2]} is not supported")
            if match[1] in found:
                self.fail(f"the rule {match[1]} is there twice")
            self.at = match.end()
            self._skip()
            found[match[1]] = self._choice(0)
        return found

    def _choice(self, depth: int) -> Choice:
        if depth > MAX_DEPTH:
            self.fail(f"groups are nested deeper than {MAX_DEPTH}")
        sequences: list[tuple[Term, ...]] = []
        terms: list[Term] = []
        while True:
            if self._take("|"):
                sequences.append(tuple(terms))
                terms = []
            elif self._ends(depth):
                return Choice((*sequences, tuple(terms)))
            else:
                terms += self._repeated(self._term(depth))
            self._skip()

    def _ends(self, depth: int) -> bool:
        if self.at == len(self.text):
            return True
        return self.text[self.at] == ")" if depth else bool(_RULE.match(self.text, self.at))

    def _term(self, depth: int) -> tuple[Term, ...]:
        if self._take('"'):
            return self._literal()
        if self._take("["):
            return (self._class(),)
        if self._take("."):
            return (Characters(without_surrogates([(0, LAST)])),)
        if self._take("("):
            self._skip()
            inner = self._choice(depth + 1)
            if not self._take(")"):
                self.fail("a ( has no )")
            return (inner,)
        match = _NAME.match(self.text, self.at)
        if match is None:
            self.fail(f"{self.text[self.at : self.at + 10]!r} is not expected here")
        if self.text.startswith("(", match.end()):
            self.fail(f"the macro {match[0]}(...) is not supported")
        self.at = match.end()
        return (Reference(match[0]),)

    def _repeated(self, terms: tuple[Term, ...]) -> tuple[Term, ...]:
        """`terms`, or their repetition: of a literal it is all of it."""
        self._skip(lines=False)
        match = _REPEAT.match(self.text, self.at)
        if match is None:
            return terms
        self.at = match.end()
        minimum, maximum = 0 if match[0] in "*?" else 1, 1 if match[0] == "?" else None
        if match[1]:
            minimum = int(match[1])
            maximum = minimum if not match[2] else (int(match[3]) if match[3] else None)
        if max(minimum, maximum or 0) > MAX_REPEATS or (maximum is not None and maximum < minimum):
            self.fail(f"{match[0]} is not from 0 to {MAX_REPEATS}, in ascending order")
        term = terms[0] if len(terms) == 1 else Choice((terms,))
        return (Repeat(term, minimum, maximum),)

    def _literal(self) -> tuple[Term, ...]:
        codes: list[int] = []
        while not self._take('"'):
            codes.append(self._character(_PUNCTUATION))
        return tuple(Characters(((code, code),)) for code in codes)

    def _class(self) -> Characters:
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        while not self._take("]"):
            first = last = self._character(_CLASS_PUNCTUATION)
            if self.text[self.at : self.at + 1] == "-" and self.text[self.at + 1 :][:1] != "]":
                self.at += 1
                last = self._character(_CLASS_PUNCTUATION)
            if last < first:
                self.fail("a range does not ascend")
            ranges.append((first, last))
        found = without_surrogates(_outside(ranges) if negated else ranges)
        if not found:
            self.fail("a class has no character")
        return Characters(found)

    def _character(self, punctuation: frozenset[str]) -> int:
        letter = self._next()
        if letter in "\r\n":
            self.fail("a line ends in a literal or class; write \\n")
        if letter != "\\":
            return ord(letter)
        match = _HEX.match(self.text, self.at)
        if match:
            self.at = match.end()
            if match[1] and len(match[1]) > 2:
                self.fail(f"\\x{match[1]} means different things; write \\uXXXX or \\UXXXXXXXX")
            code = int(next(filter(None, match.groups())), 16)
            if code > LAST or 0xD800 <= code < 0xE000:
                self.fail(f"U+{code:04X} is not a character")
            return code
        escaped = self._next()
        if escaped in _CONTROLS:
            return _CONTROLS[escaped]
        if escaped not in punctuation:
            self.fail(f"\\{escaped} is not supported")
        return ord(escaped)

    def _next(self) -> str:
        if self.at == len(self.text):
            self.fail("the grammar ends too early")
        self.at += 1
        return self.text[self.at - 1]

    def _take(self, text: str) -> bool:
        if not self.text.startswith(text, self.at):
            return False
        self.at += len(text)
        return True

    def _skip(self, *, lines: bool = True) -> None:
        if lines:
            match = _SPACE.match(self.text, self.at)
            self.at = match.end() if match else self.at
        else:
            while self.text[self.at : self.at + 1] in (" ", "\t"):
                self.at += 1


def without_surrogates(ranges: Sequence[tuple[int, int]]) -> Ranges:
    """Sort and merge the ranges, and leave out code points that are not characters."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        for start, end in ((first, min(last, 0xD7FF)), (max(first, 0xE000), last)):
            if start <= end:
                if found and start <= found[-1][1] + 1:
                    found[-1] = (found[-1][0], max(found[-1][1], end))
                else:
                    found.append((start, end))
    return tuple(found)


def _outside(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    found, start = [], 0
    for first, last in sorted(ranges):
        if start < first:
            found.append((start, first - 1))
        start = max(start, last + 1)
    return [*found, (start, LAST)] if start <= LAST else found
