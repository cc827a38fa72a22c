# SPDX-License-Identifier: Apache-2.0
"""Compares the verdicts of grammars with those of `jsonschema`."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any

import jsonschema  # type: ignore[import-untyped]
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis_jsonschema import from_schema

from rtp_llm.testing.text.matching import BYTES, accepts, accepts_value, matcher
from rtp_llm.testing.text.random_schemas import SchemaMaker, ValueMaker
from rtp_llm.text.grammar import GrammarError, check_grammar, json_schema_grammar


def _multiple_of(_: Any, factor: float, value: Any, __: Any) -> Any:
    """Of the decimals as they are written; `jsonschema` divides doubles."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        return
    number, step = Decimal(str(value)), Fraction(Decimal(str(factor)))
    if number.is_finite() and not _divides(step, number):
        yield jsonschema.ValidationError("multipleOf")


def _divides(step: Fraction, number: Decimal) -> bool:
    """Without the number itself, whose exponent may have many digits."""
    _, digits, exponent = number.as_tuple()
    whole = int("".join(map(str, digits))) * step.denominator
    assert isinstance(exponent, int)
    if exponent >= 0:
        power: int = pow(10, exponent, step.numerator)
        return whole * power % step.numerator == 0
    if -exponent > len(digits) + 20:  # it lies between 0 and the step
        return whole == 0
    scale: int = 10**-exponent
    return whole % (step.numerator * scale) == 0


def _pattern(_: Any, pattern: str, value: Any, __: Any) -> Any:
    """Of ECMA-262: ASCII classes, and $ is the very end."""
    if isinstance(value, str) and not re.search(pattern.replace("$", r"\Z"), value, re.ASCII):
        yield jsonschema.ValidationError("pattern")


_VALIDATOR: Any = jsonschema.validators.extend(
    jsonschema.Draft202012Validator, {"multipleOf": _multiple_of, "pattern": _pattern}
)


def oracle_of(schema: Any) -> Any:
    """Its `is_valid(value)` is what JSON Schema, with formats, says of a value."""
    return _VALIDATOR(_of_ascii(schema), format_checker=jsonschema.FormatChecker())


@dataclass
class Verdicts:
    """The outcome of comparisons: numbers of valid and invalid values, and mismatches."""

    schemas: int = 0
    valid: int = 0
    invalid: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, seed: int, examples: int) -> None:
        """Compare for the schema of this seed."""
        schema = SchemaMaker(seed).schema()
        self.schemas += 1
        oracle = oracle_of(schema)
        values = [value for value in _values(schema, seed, examples) if _is_usable(value)]
        try:
            grammar = json_schema_grammar(schema)
            check_grammar(grammar, BYTES)
        except GrammarError as error:
            if "no finite JSON value" in str(error):  # then it is the verdict on every value
                self.wrong += [f"{schema}: {v} is valid" for v in values if oracle.is_valid(v)]
            else:
                self.refused[error.keyword or str(error)[:60]] += 1
            return
        start = matcher(grammar)
        for value in values:
            if oracle.is_valid(value):
                self.valid += 1
                if not accepts_value(start, value):
                    self.wrong.append(f"{schema}: {value} is valid and rejected")
            else:
                self.invalid += 1
                if accepts_value(start, value) or any(accepts(start, t) for t in _texts(value)):
                    self.wrong.append(f"{schema}: {value} is invalid and accepted")


def _of_ascii(schema: Any) -> Any:
    """The schema with the classes of ECMA-262 in patterns of names too."""
    if isinstance(schema, list):
        return [_of_ascii(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _of_ascii(value) for key, value in schema.items()}
    if isinstance(schema.get("patternProperties"), dict):
        patterns = found["patternProperties"]
        found["patternProperties"] = {f"(?a:{key})": value for key, value in patterns.items()}
    return found


def _values(schema: dict[str, Any], seed: int, examples: int) -> list[Any]:
    source = random.Random(seed)
    maker = ValueMaker(source, schema)
    found = [*_drawn(schema, seed, examples // 3), *(maker.any(3) for _ in range(examples // 3))]
    found += [maker.near(source.choice(found)) for _ in range(examples - len(found))]
    return [maker.near(value) if source.random() < 0.2 else value for value in found]


def _drawn(schema: dict[str, Any], seed: int, count: int) -> list[Any]:
    """By hypothesis-jsonschema, which knows the keywords of Draft 7."""
    found: list[Any] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(from_schema(deepcopy(schema)))  # it writes what references lead to into it
    def collect(value: Any) -> None:
        found.append(value)

    with suppress(Exception):  # what it cannot draw (recursion) the other values stand for
        collect()
    return found[:count]


def _texts(value: Any) -> list[str]:
    """Other spellings of a value."""
    text = json.dumps(value)
    escaped = re.sub(r'"a', r'"\\u0061', json.dumps(value, separators=(",", ":")))
    return [text, escaped, json.dumps(value, indent=1, ensure_ascii=False)]


def _is_usable(value: Any) -> bool:
    """Without NUL (pattern_parser.no_nul), surrogates, integers of more than 18 digits (unbounded
    ones end at 10^18), and objects of too many orders."""
    if re.search(r"(?<![\d.])\d{19}|e\+(1[89]|[2-9]\d|\d{3})", json.dumps(value)):
        return False
    if re.search(r"\\u0000|\\ud[89a-f]", json.dumps(value)):
        return False
    return _max_properties(value) <= 5


def _max_properties(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    own = len(value) if isinstance(value, dict) else 0
    return max((own, *map(_max_properties, inner)))
