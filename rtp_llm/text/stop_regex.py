# SPDX-License-Identifier: Apache-2.0
"""Find regular expressions that end a text, in text that arrives in pieces.

Python's `re` needs exponential time for some patterns and cannot say what may still become a match,
so the automaton of the patterns is run here, one character after another.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

MAX_PATTERNS = 16
MAX_PATTERN_LENGTH = 1024
# Of all patterns of a request: the work for a character is proportional to it.
MAX_STATES = 256
MAX_MEMO = 4096

_syntax: Any = re._parser
_codes: Any = re._constants
_CATEGORIES: dict[Any, Callable[[str], bool]] = {
    _codes.CATEGORY_DIGIT: str.isdecimal,
    _codes.CATEGORY_SPACE: str.isspace,
    _codes.CATEGORY_WORD: lambda c: c.isalnum() or c == "_",
    _codes.CATEGORY_NOT_DIGIT: lambda c: not c.isdecimal(),
    _codes.CATEGORY_NOT_SPACE: lambda c: not c.isspace(),
    _codes.CATEGORY_NOT_WORD: lambda c: not (c.isalnum() or c == "_"),
}
_Test = Callable[[str], bool]


class StopRegexError(ValueError):
    """The pattern cannot be used; the message begins with the pattern."""


class _Automaton:
    """Thompson's construction. A state has a test and a successor, or successors without a test.

    Raises StopRegexError.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._tests: list[_Test | None] = []
        self._next: list[list[int]] = []
        self._at_start: list[str] = []  # "" or "text" or "line": where the state may be passed
        self._accepts: dict[int, str] = {}
        self._memo: dict[tuple[int, str], tuple[tuple[int, ...], str | None]] = {}
        self.starts: list[int] = []
        for self._pattern in patterns:
            self.starts.append(self._build())

    # -- construction ----------------------------------------------------------------------------

    def _build(self) -> int:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of syntax that may mean something else one day
                tree = _syntax.parse(self._pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise self._refused(f"is not a regular expression: {error}") from error
        self._flags = tree.state.flags
        if tree.getwidth()[0] == 0:
            raise self._refused("matches the empty text")
        accept = self._state()
        self._accepts[accept] = self._pattern
        return self._sequence(tree, accept)

    def _refused(self, reason: str) -> StopRegexError:
        return StopRegexError(f"{self._pattern!r} {reason}")

    def _state(self, test: _Test | None = None, *successors: int, at_start: str = "") -> int:
        if len(self._tests) >= MAX_STATES:
            raise self._refused(f"needs more than {MAX_STATES} states (repetitions count)")
        self._tests.append(test)
        self._next.append(list(successors))
        self._at_start.append(at_start)
        return len(self._tests) - 1

    def _sequence(self, items: Any, after: int) -> int:
        for code, value in reversed(list(items)):
            after = self._item(code, value, after)
        return after

    def _item(self, code: Any, value: Any, after: int) -> int:
        if code is _codes.SUBPATTERN:
            _, add, remove, items = value
            before, self._flags = self._flags, (self._flags | add) & ~remove
            after = self._sequence(items, after)
            self._flags = before
            return after
        if code is _codes.BRANCH:
            return self._state(None, *[self._sequence(each, after) for each in value[1]])
        if code in (_codes.MAX_REPEAT, _codes.MIN_REPEAT):
            minimum, maximum, items = value
            return self._repeat(minimum, maximum, items, after)
        if code is _codes.AT:
            return self._anchor(value, after)
        test = self._test(code, value)
        return self._state(test, after)

    def _repeat(self, minimum: int, maximum: Any, items: Any, after: int) -> int:
        if maximum is _codes.MAXREPEAT:
            loop = self._state(None)
            self._next[loop] = [self._sequence(items, loop), after]
            after = loop
        else:
            if maximum > MAX_STATES:
                raise self._refused(f"repeats more than {MAX_STATES} times")
            end = after
            for _ in range(maximum - minimum):
                after = self._state(None, self._sequence(items, after), end)
        for _ in range(minimum):
            if len(self._tests) >= MAX_STATES:
                raise self._refused(f"needs more than {MAX_STATES} states (repetitions count)")
            after = self._sequence(items, after)
        return after

    def _anchor(self, place: Any, after: int) -> int:
        if place not in (_codes.AT_BEGINNING, _codes.AT_BEGINNING_STRING):
            raise self._refused(
                "looks at what comes next ($, \\b, \\B, \\Z), which nobody knows of an answer that "
                "goes on"
            )
        lines = place is _codes.AT_BEGINNING and self._flags & re.MULTILINE
        return self._state(None, after, at_start="line" if lines else "text")

    def _test(self, code: Any, value: Any) -> _Test:
        test = self._plain_test(code, value)
        if not self._flags & re.IGNORECASE:
            return test
        return lambda c: test(c) or test(c.lower()) or test(c.upper())

    def _plain_test(self, code: Any, value: Any) -> _Test:
        if code is _codes.ANY:
            return (lambda c: True) if self._flags & re.DOTALL else (lambda c: c != "\n")
        if code is _codes.LITERAL:
            return chr(value).__eq__
        if code is _codes.NOT_LITERAL:
            return chr(value).__ne__
        if code is _codes.RANGE:
            low, high = map(chr, value)
            return lambda c: low <= c <= high
        if code is _codes.CATEGORY:
            return _CATEGORIES[value]
        if code is _codes.IN:
            negated = value[0][0] is _codes.NEGATE
            tests = [self._plain_test(*each) for each in value[negated:]]
            return lambda c: any(test(c) for test in tests) is not negated
        raise self._refused("has back references, look-around or atomic groups")

    # -- running ---------------------------------------------------------------------------------

    def step(self, state: int, character: str) -> tuple[tuple[int, ...], str | None]:
        """Return the next states with tests, and the pattern that is completed, or None."""
        key = state, character
        found = self._memo.get(key)
        if found is None:
            test = self._tests[state]
            passes = test is not None and test(character)
            found = self.closure(self._next[state], character) if passes else ((), None)
            if len(self._memo) < MAX_MEMO:
                self._memo[key] = found
        return found

    def begin(self, before: str) -> tuple[int, ...]:
        """The states with tests in which a match can begin after the character `before`."""
        key = -1, before
        if key not in self._memo:
            found = self.closure(self.starts, before)
            if len(self._memo) >= MAX_MEMO:
                return found[0]
            self._memo[key] = found
        return self._memo[key][0]

    def closure(self, states: Sequence[int], before: str) -> tuple[tuple[int, ...], str | None]:
        """The same without a character; `before`: the one before this place, "" at the start."""
        accepted: str | None = None
        seen: set[int] = set()
        waiting = list(states)
        found: list[int] = []
        while waiting:
            state = waiting.pop()
            if state in seen or not _may_pass(self._at_start[state], before):
                continue
            seen.add(state)
            if state in self._accepts:
                accepted = self._accepts[state]
            elif self._tests[state] is not None:
                found.append(state)
            else:
                waiting += self._next[state]
        return tuple(found), accepted


def _may_pass(at_start: str, before: str) -> bool:
    if not at_start:
        return True
    return before == "" or (at_start == "line" and before == "\n")


@lru_cache(maxsize=64)
def _automaton(patterns: tuple[str, ...]) -> _Automaton:
    return _Automaton(patterns)


def check_stop_regex(patterns: Sequence[str]) -> None:
    """Raise StopRegexError unless `StopRegex` accepts all `patterns`."""
    if len(patterns) > MAX_PATTERNS or any(len(each) > MAX_PATTERN_LENGTH for each in patterns):
        raise StopRegexError(
            f"at most {MAX_PATTERNS} patterns of at most {MAX_PATTERN_LENGTH} characters are taken"
        )
    if patterns:
        _automaton(tuple(patterns))


class StopRegex:
    """As StopStrings, for patterns and texts together: the first match to be complete ends the
    text, from the earliest place where it can begin.

    `matched`: the text or the pattern that was found. Raises StopRegexError.
    """

    def __init__(
        self, patterns: Sequence[str], stops: Sequence[str] = (), *, include: bool = False
    ) -> None:
        escaped = {re.escape(stop): stop for stop in stops}
        self._automaton = _automaton((*escaped, *patterns))
        self._names = escaped
        self._include = include
        self._held = ""
        self._before = ""
        self._threads: dict[int, int] = {}  # state -> where its match begins in `_held`
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Take the next piece; return what is certain to be visible. "" after a match."""
        return "" if self.matched is not None else self._run(text, searching=True)

    def skip(self, text: str) -> str:
        """Take a piece in which no match may be complete; one may begin in it."""
        return self._run(text, searching=False)

    def flush(self) -> str:
        """The text is over: return what was held back."""
        held, self._held = self._held, ""
        self._threads = {}
        return held

    def _run(self, text: str, searching: bool) -> str:
        position = len(self._held)
        text = self._held + text
        for end in range(position, len(text)):
            found, start = self._advance(text[end], end)
            if found is not None and searching:
                self.matched, self._held = self._names.get(found, found), ""
                return text[: end + 1 if self._include else start]
        keep = min(self._threads.values(), default=len(text))
        self._held = text[keep:]
        self._threads = {state: start - keep for state, start in self._threads.items()}
        return text[:keep]

    def _advance(self, character: str, place: int) -> tuple[str | None, int]:
        """The pattern that this character completes, and where its match begins."""
        automaton, threads = self._automaton, self._threads
        for state in automaton.begin(self._before):
            threads.setdefault(state, place)
        following: dict[int, int] = {}
        found, begin = None, place
        for state, start in threads.items():
            states, accepted = automaton.step(state, character)
            for each in states:
                following[each] = min(start, following.get(each, start))
            if accepted is not None and (found is None or start < begin):
                found, begin = accepted, start
        self._threads, self._before = following, character
        return found, begin
