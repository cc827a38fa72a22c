# SPDX-License-Identifier: Apache-2.0
"""The parser of regular expressions in ECMA-262's syntax, as far as Python's agrees."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from rtp_llm.text.grammar.errors import GrammarError

MAX_DEPTH = 50
MAX_REPEATS = 10_000
MAX_SIZE = 100_000
"""Maximum product of the counts of nested repetitions."""
_PROPERTY_SIZE = 30  # a property of Unicode is a class of hundreds of ranges

_SPACE = (
    r"\t\n\x0B\x0C\r \x{a0}\x{1680}\x{2000}-\x{200a}"
    r"\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}"
)
_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": _SPACE}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_QUOTING = frozenset((0, ord('"'), ord("\\")))
_QUANTIFIER = re.compile(r"[*+?]|\{(\d{1,9})(?:(,)(\d{0,9}))?\}", re.ASCII)
_AMBIGUOUS = re.compile(r"\{,\d+\}", re.ASCII)
_HEX = re.compile(r"u\{([0-9A-Fa-f]{1,6})\}|u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})")
_LOW_SURROGATE = re.compile(r"\\u([Dd][C-Fc-f][0-9A-Fa-f]{2})")
_PROPERTY = re.compile(r"([pP])\{([\w=^]{1,64})\}", re.ASCII)
_NAME = re.compile(r"\(\?P?<([A-Za-z_]\w*)>", re.ASCII)
_REFUSED_GROUPS = {
    "(?=": "look-ahead (?=...)",
    "(?!": "negative look-ahead (?!...)",
    "(?<=": "look-behind (?<=...)",
    "(?<!": "negative look-behind (?<!...)",
    "(?P=": "back-reference (?P=...)",
    "(?(": "conditional group (?(...)",
    "(?#": "comment (?#...)",
    "(?>": "atomic group (?>...)",
}


class Anchor:
    """`^` or `$`, by identity."""


START, END = Anchor(), Anchor()


@dataclass(frozen=True)
class Group:
    """Alternatives in parentheses; `repeat` is the quantifier that follows, or empty."""

    alternatives: Sequence[Sequence[Item]]
    repeat: str = ""

    @property
    def has_anchor(self) -> bool:
        """Whether ^ or $ is anywhere in it."""
        return any(
            isinstance(item, Anchor) or (isinstance(item, Group) and item.has_anchor)
            for each in self.alternatives
            for item in each
        )


Item = str | Group | Anchor
"""A character or class with its quantifier, in Rust's syntax; a group; an anchor."""


def parse(pattern: str, *, newline_only: bool) -> list[list[Item]]:
    """Translate the alternatives of `pattern`.

    `newline_only`: `.` is all but a newline, as in Python; ECMA-262 leaves out four characters.
    Raises GrammarError for an invalid pattern, or one that llguidance has no counterpart for.
    """
    parser = _Parser(pattern, newline_only)
    found = parser.alternatives(0)
    if parser.at < len(pattern):
        parser.fail("there is a ) without its (")
    return found


class _Parser:
    def __init__(self, pattern: str, newline_only: bool) -> None:
        self.pattern = pattern
        self.at = 0
        self._size = 1  # of the item that was read last
        self._dot = r"[^\n]" if newline_only else r"[^\n\r\x{2028}\x{2029}]"

    def fail(self, reason: str) -> NoReturn:
        """GrammarError, with the place."""
        raise GrammarError(f"pattern, character {self.at}: {reason}", "pattern")

    def alternatives(self, depth: int) -> list[list[Item]]:
        """Up to the end, or to the `)` of the group that these are in."""
        if depth > MAX_DEPTH:
            self.fail(f"groups are nested deeper than {MAX_DEPTH}")
        found: list[list[Item]] = [[]]
        size = 1
        while self._peek() not in ("", ")"):
            if self._take("|"):
                found.append([])
            else:
                self._size = 1
                found[-1].append(self._repeated(self._item(depth)))
                size = max(size, self._size)
        if size > MAX_SIZE:
            self.fail(f"repetitions in each other come to {size}; at most {MAX_SIZE} are taken")
        self._size = size
        return found

    def _item(self, depth: int) -> Item:
        if self._take("^") or self._take(r"\A"):
            return START
        if self._take("$") or self._take(r"\Z") or self._take(r"\z"):
            return END
        if self._take("."):
            return self._dot
        if self._peek() == "(":
            return self._group(depth)
        if self._take("["):
            return self._class()
        if self._take("\\"):
            return self._escape()
        if _AMBIGUOUS.match(self.pattern, self.at):
            self.fail("{,n} means different things; write {0,n}")
        letter = self._next()
        if letter in "*+?":
            self.fail(f"{letter} has nothing to repeat")
        return quoted(ord(letter))

    def _repeated(self, item: Item) -> Item:
        match = _QUANTIFIER.match(self.pattern, self.at)
        if match is None:
            return item
        if isinstance(item, Anchor):
            self.fail("an anchor cannot be repeated")
        self.at = match.end()
        minimum, comma, maximum = match.groups()
        if minimum and int(maximum or minimum) > MAX_REPEATS:
            self.fail(f"more than {MAX_REPEATS} repetitions")
        if minimum and maximum and int(maximum) < int(minimum):
            self.fail(f"{match[0]} is not a range")
        self._size *= max(1, int(maximum or minimum or 1))
        self._take("?")  # what is matched is the same, lazily or not
        if self._peek() == "+":
            self.fail("a possessive quantifier is not supported")
        repeat = match[0] if not minimum else f"{{{minimum}{comma or ''}{maximum or ''}}}"
        if isinstance(item, Group):
            return Group(item.alternatives, repeat)
        return item + repeat

    def _group(self, depth: int) -> Item:
        for start, name in _REFUSED_GROUPS.items():
            if self.pattern.startswith(start, self.at):
                self.fail(f"{name} is not supported")
        named = _NAME.match(self.pattern, self.at)
        if named:
            self.at = named.end()
        elif not self._take("(?:"):
            if self.pattern.startswith("(?", self.at):
                self.fail("inline flags are not supported")
            self._take("(")
        found = self.alternatives(depth + 1)
        if not self._take(")"):
            self.fail("a ( has no )")
        return Group(found)

    def _escape(self) -> str:
        letter = self._peek()
        if letter in ("b", "B"):
            self.fail(rf"the word boundary \{letter} is not supported")
        if letter == "k" or letter in tuple("123456789"):
            self.fail(rf"the back-reference \{letter} is not supported")
        if letter.lower() in _CLASSES:
            self.at += 1
            return f"[{'^' if letter.isupper() else ''}{_CLASSES[letter.lower()]}]"
        category = self._property()
        return no_nul(f"[{category}]") if category is not None else quoted(self._character())

    def _property(self) -> str | None:
        match = _PROPERTY.match(self.pattern, self.at)
        if match is None:
            return None
        self.at = match.end()
        self._size = _PROPERTY_SIZE
        return f"\\{match[0]}"

    def _character(self) -> int:
        """Read the part of an escape after the backslash; returns the character it denotes."""
        match = _HEX.match(self.pattern, self.at)
        if match:
            self.at = match.end()
            return self._unicode(int(next(filter(None, match.groups())), 16))
        letter = self._next()
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter == "c" and self._peek().isalpha() and self._peek().isascii():
            return ord(self._next()) % 32
        if letter.isalnum():
            self.fail(rf"\{letter} is not supported")
        return ord(letter)

    def _unicode(self, code: int) -> int:
        """`code`, with the second half of a surrogate pair where it is the first."""
        if 0xD800 <= code < 0xDC00:
            low = _LOW_SURROGATE.match(self.pattern, self.at)
            if low:
                self.at = low.end()
                return 0x10000 + ((code - 0xD800) << 10) + int(low[1], 16) - 0xDC00
        if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
            self.fail(f"U+{code:04X} is not a character")
        return code

    def _class(self) -> str:
        negated = self._take("^")
        parts: list[str] = []
        covered: set[int] = set()  # of the characters that _without_nul asks for
        while not self._take("]"):
            first = self._member()
            if isinstance(first, int) and self._peek() == "-" and self._peek(1) not in ("]", ""):
                self.at += 1
                last = self._member()
                if not isinstance(last, int) or last < first:
                    self.fail("a range of the class does not ascend")
                parts.append(f"{quoted(first)}-{quoted(last)}")
                covered |= {code for code in _QUOTING if first <= code <= last}
            elif isinstance(first, int):
                parts.append(quoted(first))
                covered.add(first)
            else:
                parts.append(first)
                covered |= (
                    _QUOTING if first in ("[^0-9]", "[^0-9A-Za-z_]", f"[^{_SPACE}]") else set()
                )
        if not parts:
            return "(?s:.)" if negated else r"[^\x00-\x{10ffff}]"
        made = f"[{'^' if negated else ''}{''.join(parts)}]"
        covered &= _QUOTING
        covered = set(_QUOTING) - covered if negated else covered
        by_property = any(part.startswith((r"\p", r"\P")) for part in parts)
        return (
            made if not by_property and (0 not in covered or covered == _QUOTING) else no_nul(made)
        )

    def _member(self) -> int | str:
        """A character of a class, or a class in it, in Rust's syntax."""
        if not self._take("\\"):
            return ord(self._next())
        letter = self._peek()
        if letter.lower() in _CLASSES:
            self.at += 1
            return f"[{'^' if letter.isupper() else ''}{_CLASSES[letter.lower()]}]"
        if self._take("b"):
            return 8
        category = self._property()
        return category if category is not None else self._character()

    def _peek(self, ahead: int = 0) -> str:
        return self.pattern[self.at + ahead : self.at + ahead + 1]

    def _next(self) -> str:
        letter = self._peek()
        if not letter:
            self.fail("the pattern ends too early")
        self.at += 1
        return letter

    def _take(self, text: str) -> bool:
        if not self.pattern.startswith(text, self.at):
            return False
        self.at += len(text)
        return True


def no_nul(class_: str) -> str:
    r"""The class without U+0000.

    llguidance writes a class with every control character as if it had `"` and `\` too.
    """
    return rf"[{class_}&&[^\x{{0}}]]"


def quoted(code: int) -> str:
    """A character in Rust's syntax, inside of a class or out."""
    letter = chr(code)
    return letter if letter.isalnum() and letter.isascii() else rf"\x{{{code:x}}}"
