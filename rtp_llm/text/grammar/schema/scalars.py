# SPDX-License-Identifier: Apache-2.0
"""Conjunctions of atoms of numbers and strings."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

from rtp_llm.text.grammar.errors import UnplacedError
from rtp_llm.text.grammar.pattern import none_of
from rtp_llm.text.grammar.schema.atoms import (
    Bound,
    Conjunction,
    Length,
    Matching,
    Multiple,
    Values,
    Whole,
)
from rtp_llm.text.grammar.schema.shapes import Scalar

# llguidance keeps bounds in doubles and integers of 64 bits; the last double that it takes:
LARGEST = 2**63 - 1024
_EXACT = 2**53
# Small models write digits for ever where they may: up to here where a schema has no bound.
_FREE = 10**18
_MAX_DIGITS = 15
MAX_STEP = 10_000
# Whether any text matches all takes llguidance 2.5 times as long with each pattern more, whatever
# they are: 14 a second at most, 29 more than six minutes.
MAX_PATTERNS = 14
"""Of multipleOf, read without its decimal point and last zeros."""


def numbers(atoms: Conjunction) -> list[Scalar]:
    """The shapes of numbers: the values that are left out lie between them."""
    left_out = {
        Fraction(Decimal(repr(value)))
        for atom in atoms
        if isinstance(atom, Values)
        for value in atom.values
    }
    step = _step([Fraction(atom.factor) for atom in atoms if isinstance(atom, Multiple)])
    whole = any(isinstance(atom, Whole) for atom in atoms)
    if whole:
        step = _step([Fraction(1), *([step] if step else [])])
    low, high = _bounds(atoms)
    shapes = []
    for value in sorted(left_out):
        if _within(low, high, value):
            shapes += _interval(low, (value, True), step, whole)
            low = (value, True)
    return shapes + _interval(low, high, step, whole)


_End = tuple[Fraction, bool] | None  # the bound, and whether it is left out itself


def _bounds(atoms: Conjunction) -> tuple[_End, _End]:
    found = [atom for atom in atoms if isinstance(atom, Bound)]
    lower = [(Fraction(atom.value), atom.exclusive) for atom in found if atom.lower]
    upper = [(Fraction(atom.value), atom.exclusive) for atom in found if not atom.lower]
    return (
        max(lower, default=None),
        min(upper, default=None, key=lambda end: (end[0], not end[1])),
    )


def _within(low: _End, high: _End, value: Fraction) -> bool:
    above = low is None or value > low[0] or (value == low[0] and not low[1])
    below = high is None or value < high[0] or (value == high[0] and not high[1])
    return above and below


def _step(factors: list[Fraction]) -> Fraction | None:
    """The least common multiple."""
    step: Fraction | None = None
    for factor in factors:
        if step is None:
            step = factor
        else:
            over = math.lcm(
                step.numerator * factor.denominator, factor.numerator * step.denominator
            )
            step = Fraction(over, step.denominator * factor.denominator)
    return step


def _interval(low: _End, high: _End, step: Fraction | None, whole: bool) -> list[Scalar]:
    if step is not None:
        low, high = _on_grid(low, step, up=True), _on_grid(high, step, up=False)
    if low and high and not whole:
        low, high = _closed(low, high)
    if _is_empty(low, high):
        return []
    low, high = _representable(low, high)
    schema: dict[str, Any] = {"type": "integer" if whole else "number"}
    for end, name in ((low, "minimum"), (high, "maximum")):
        if end is not None:
            keyword = f"exclusive{name.capitalize()}" if end[1] else name
            schema[keyword] = plain(end[0], name)
    if step is not None and not (whole and step == 1):
        schema["multipleOf"] = _factor(step)
        return [Scalar(schema)]
    return [Scalar(schema, _limits(low, high) if whole else {})]


def _is_empty(low: _End, high: _End) -> bool:
    if low is None or high is None:
        return False
    return low[0] > high[0] or (low[0] == high[0] and (low[1] or high[1]))


def _representable(low: _End, high: _End) -> tuple[_End, _End]:
    """Bounds of more than 53 bits, moved inwards to what the library keeps exactly.

    A bound that has nothing inside of it that way stays as it is, to be refused by its name.
    """
    inner = _inside(low, 1), _inside(high, -1)
    return (low, high) if _is_empty(*inner) else inner


def _inside(end: _End, sign: int) -> _End:
    """`sign`: 1 for a lower bound, -1 for an upper one."""
    if end is None:
        return None
    bound = end[0] * sign
    if bound < -LARGEST:
        return (Fraction(-LARGEST * sign), False)
    if abs(bound) <= _EXACT or bound > LARGEST:
        return end
    nearest = float(bound)
    inside = nearest if Fraction(nearest) >= bound else math.nextafter(nearest, math.inf)
    moved = Fraction(inside)
    return (moved * sign, end[1] and moved == bound)


def _limits(low: _End, high: _End) -> dict[str, Any]:
    """The bounds of integers that have none: a limit to their digits."""
    found: dict[str, Any] = {}
    if low is None:
        found["minimum"] = -_FREE if high is None or high[0] > -_FREE else -LARGEST
    if high is None:
        found["maximum"] = _FREE if low is None or low[0] < _FREE else LARGEST
    return found


def _closed(low: tuple[Fraction, bool], high: tuple[Fraction, bool]) -> tuple[_End, _End]:
    """Adjust exclusive bounds that the library would otherwise treat as inclusive.

    It accepts an excluded integer if both bounds lie between that integer and the next one. The
    bound then becomes the next number with as many digits as the library keeps, at most 9 of them
    after the decimal point.
    """

    def next_to(end: Fraction) -> Fraction:
        return Fraction(1, 10 ** min(9, _MAX_DIGITS - len(str(abs(int(end))))))

    if low[1] and low[0].denominator == 1 and 0 <= low[0] < high[0] < low[0] + 1:
        low = (low[0] + next_to(low[0]), False)
    elif high[1] and high[0].denominator == 1 and high[0] - 1 < low[0] < high[0] <= 0:
        high = (high[0] - next_to(high[0]), False)
    return low, high


def _factor(step: Fraction) -> float:
    number = plain(step, "multipleOf")
    digits = "".join(map(str, Decimal(repr(number)).normalize().as_tuple().digits))
    if int(digits) > MAX_STEP:  # each remainder is a state of the library's automaton
        raise UnplacedError("multipleOf", f"{number} has more digits than {MAX_STEP}")
    return number


def _on_grid(end: _End, step: Fraction, *, up: bool) -> _End:
    """The last multiple of `step` inside of a bound."""
    if end is None:
        return None
    ratio = end[0] / step
    count = math.ceil(ratio) if up else math.floor(ratio)
    if end[1] and count == ratio:
        count += 1 if up else -1
    return (count * step, False)


def plain(value: Fraction, keyword: str) -> float:
    """The number as JSON that llguidance reads exactly; UnplacedError if there is none."""
    if value.denominator == 1:
        whole = value.numerator
        if abs(whole) <= LARGEST and (abs(whole) <= _EXACT or float(whole) == whole):
            return whole
        raise UnplacedError(
            keyword, f"{str(whole)[:30]} has more than 64 bits, or needs more than 53"
        )
    if value.numerator.bit_length() > 1000 or value.denominator.bit_length() > 1000:
        raise UnplacedError(keyword, "a number has too many digits")
    number = float(value)
    written = Decimal(repr(number))
    if Fraction(written) != value or len(written.as_tuple().digits) > _MAX_DIGITS:
        raise UnplacedError(keyword, f"{number!r} has more than {_MAX_DIGITS} digits")
    if abs(number) < 1e-9:
        raise UnplacedError(keyword, f"{number!r} needs an exponent")
    return number


def strings(atoms: Conjunction) -> list[Scalar]:
    """The shape of strings; none where the length cannot be."""
    minimum = max((atom.minimum for atom in atoms if isinstance(atom, Length)), default=0)
    maxima = [a.maximum for a in atoms if isinstance(a, Length) and a.maximum is not None]
    maximum = min(maxima, default=None)
    if maximum is not None and minimum > maximum:
        return []
    schema: dict[str, Any] = {"type": "string"}
    if minimum:
        schema["minLength"] = minimum
    if maximum is not None:
        schema["maxLength"] = maximum
    patterns = [atom.pattern for atom in atoms if isinstance(atom, Matching)]
    words = [word for atom in atoms if isinstance(atom, Values) for word in atom.values]
    if words:
        patterns.append(none_of(list(dict.fromkeys(words))))
    if len(patterns) > MAX_PATTERNS:
        raise UnplacedError(
            "pattern",
            f"{len(patterns)} patterns of one string are too many; at most {MAX_PATTERNS}",
        )
    if patterns:
        schema["pattern"] = anchored(patterns[0])
    if len(patterns) < 2:
        return [Scalar(schema)]
    others = [{"type": "string", "pattern": anchored(pattern)} for pattern in patterns[1:]]
    return [Scalar({"allOf": [schema, *others]})]


def anchored(rust: str) -> str:
    """A pattern for the whole text as `pattern` and `patternProperties` take it."""
    return f"^(?:{rust})$"
