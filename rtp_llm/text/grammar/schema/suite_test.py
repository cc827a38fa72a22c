# SPDX-License-Identifier: Apache-2.0
"""JSON-Schema-Test-Suite: every case passes, or its schema is refused."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.testing.text.matching import BYTES, accepts_value, matcher
from rtp_llm.text.grammar import GrammarError, check_grammar, json_schema_grammar

SUITE = Path(__file__).parents[4] / "3rdparty" / "json_schema_test_suite"
# Groups whose schema is refused, by file. docs/structured_output.md says why.
REFUSED = {
    "defs.json": 1,
    "dependentSchemas.json": 1,
    "dynamicRef.json": 5,
    "format.json": 2,
    "multipleOf.json": 1,
    "not.json": 3,
    "oneOf.json": 2,
    "patternProperties.json": 3,
    "ref.json": 2,
    "refRemote.json": 15,
    "unevaluatedProperties.json": 1,
    "uniqueItems.json": 2,
    "vocabulary.json": 2,
}
# Valid values that are rejected: formats are enforced, a leap second is one in UTC, and punycode
# is not decoded, so no label has it; integers are of 64 bits.
STRICTER = (
    "is only an annotation by default",
    "leap second",
    "punycoded",
    "bignum is an integer",
    "comparison works for",
    "overflow handling is implemented",
)


def groups(folder: str) -> list[tuple[str, dict[str, Any]]]:
    files = sorted((SUITE / folder).glob("*.json"))
    return [(file.name, group) for file in files for group in json.loads(file.read_text())]


def differences(group: dict[str, Any]) -> list[str] | None:
    """The cases of a group with another verdict; None when its schema is refused."""
    try:
        grammar = json_schema_grammar(group["schema"])
        check_grammar(grammar, BYTES)
    except GrammarError as error:
        if "no finite JSON value" in str(error):
            return [case["description"] for case in group["tests"] if case["valid"]]
        return None
    start = matcher(grammar)
    return [
        f"{case['description']}{'' if case['valid'] else ' (accepted)'}"
        for case in group["tests"]
        if accepts_value(start, case["data"]) != case["valid"]
    ]


def test_what_is_not_strict_rejects_nothing_valid() -> None:
    refused = [group for _, group in groups("") if differences(group) is None]
    compiled = 0
    for group in refused:
        try:
            grammar = json_schema_grammar(group["schema"], strict=False)
            check_grammar(grammar, BYTES)
        except GrammarError as error:
            assert error.keyword in ("$ref", "$schema", "patternProperties"), group["description"]
            continue
        compiled += 1
        start = matcher(grammar)
        valid = [case["data"] for case in group["tests"] if case["valid"]]
        assert [value for value in valid if not accepts_value(start, value)] == [], group
    assert compiled > 10  # of most others a reference leads to another document


@pytest.mark.parametrize("folder", ["", "format", "optional"])
def test_cases_pass_or_schemas_are_refused(folder: str) -> None:
    refused: Counter[str] = Counter()
    wrong = []
    for name, group in groups(folder):
        found = differences(group)
        refused[name] += found is None
        wrong += [
            f"{name}, {group['description']}: {case}"
            for case in found or ()
            if case.endswith("(accepted)") or not any(known in case for known in STRICTER)
        ]
    assert wrong == []
    if not folder:
        assert dict(+refused) == REFUSED
