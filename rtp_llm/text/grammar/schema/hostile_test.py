# SPDX-License-Identifier: Apache-2.0
"""Schemas that are meant to hurt: each is refused or compiled, in bounded time and memory."""

from __future__ import annotations

import resource
from time import monotonic
from typing import Any

import pytest

from rtp_llm.testing.text.matching import BYTES
from rtp_llm.text.grammar import GrammarError, check_grammar, json_schema_grammar


def nested(keyword: str, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(depth):
        schema = {keyword: schema}
    return schema


def doubled(depth: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {"d0": {"type": "null"}}
    for index in range(depth):
        half = {"$ref": f"#/$defs/d{index}"}
        definitions[f"d{index + 1}"] = {"type": "array", "prefixItems": [half, half]}
    return {"$ref": f"#/$defs/d{depth}", "$defs": definitions}


def alternatives(count: int) -> dict[str, Any]:
    pairs = [({"required": [f"a{i}"]}, {"required": [f"b{i}"]}) for i in range(count)]
    return {"type": "object", "allOf": [{"anyOf": list(pair)} for pair in pairs]}


def scopes(count: int) -> dict[str, Any]:
    """Resources that lead to each other, each with an anchor of a name that all have."""
    names = [f"r{index}" for index in range(count)]
    resources = {
        name: {
            "$id": name,
            "properties": {other: {"$ref": other} for other in names},
            "additionalProperties": {"$dynamicRef": f"#{name}"},
            "$defs": {other: {"$dynamicAnchor": other, "const": name} for other in names[index:]},
        }
        for index, name in enumerate(names)
    }
    return {"$id": "http://example.com/", "$ref": "r0", "$defs": resources}


def chain(count: int, **keywords: Any) -> dict[str, Any]:
    """References to references, each with `keywords` next to the $ref."""
    links = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}", **keywords} for i in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{count}": {"type": "string"}}}


HOSTILE: dict[str, Any] = {
    "deep": nested("items", 90),
    "too deep": nested("items", 5000),
    "deep not": nested("not", 90),
    "doubled": doubled(60),
    "alternatives": alternatives(30),
    "enum": {"enum": [f"value {index}" for index in range(15_000)]},
    "left out": {"not": {"enum": [f"w{index}" for index in range(3000)]}},
    "overlaps": {"oneOf": [{"properties": {f"p{i}": {"type": "null"}}} for i in range(40)]},
    "properties": {"properties": {f"field_{i}": {"type": "integer"} for i in range(3000)}},
    "items": {"type": "array", "minItems": 10**9, "items": {"type": "integer"}},
    "length": {"type": "string", "maxLength": 10**9},
    "repeats": {"pattern": "^((((a{1,100}){1,100}){1,100}){1,100})$"},
    "backtracking": {"properties": {"a" * 90: {}}, "patternProperties": {"^(a+)+$": {}}},
    "states": {"pattern": "^(.*a.{20})$"},
    "step": {"multipleOf": 99_991},
    "digits": {"minimum": 10**400},
    "itself": {"allOf": [{"$ref": "#"}]},
    "each other": {"$ref": "#/$defs/a", "$defs": {"a": {"not": {"$ref": "#/$defs/a"}}}},
    "contains": {"contains": {"contains": {"const": 1}, "maxItems": 16}, "maxItems": 16},
    "more contains": {"allOf": [{"contains": {"const": i}, "minContains": 16} for i in range(9)]},
    "prefix and contains": {"prefixItems": [True] * 900, "contains": {"const": 1}},
    "not enough": {"contains": {"const": 1}, "maxContains": 10**9, "minItems": 10**9},
    "orders": {"items": {"enum": [*range(3000)]}, "uniqueItems": True},
    "unique of a range": {
        "items": {"type": "integer", "minimum": -(2**62), "maximum": 2**62},
        "uniqueItems": True,
    },
    "unique selves": {
        "items": {"$ref": "#"},
        "prefixItems": [{"$ref": "#"}] * 2,
        "uniqueItems": True,
    },
    "dynamic scopes": scopes(12),
    "chain": chain(2000, minLength=1),
    "chain of not": {"$ref": "#", "not": chain(300, type=["string", "null"])},
    "chain of oneOf": {
        "$defs": {f"d{i}": {"oneOf": [{"$ref": f"#/$defs/d{i + 1}"}, False]} for i in range(300)},
        "oneOf": [{"$ref": "#/$defs/d0"}, {"type": "null"}],
    },
    "nested repeats": {"pattern": "(a{1000}){1000}"},
    "classes": {"pattern": r"^(\p{L}|\p{N}|\p{P}){1,5000}$"},
    "many items": {"prefixItems": [{"const": i} for i in range(8000)]},
    "surrogate": {"properties": {"\ud800": {"pattern": "\udfff"}}},
}


def test_references_to_references_are_read() -> None:
    for schema in (chain(2000), chain(90, minLength=1)):
        check_grammar(json_schema_grammar(schema), BYTES)
    with pytest.raises(GrammarError, match="at most 100 are followed"):
        json_schema_grammar(chain(200, minLength=1))


@pytest.mark.parametrize("name", HOSTILE)
def test_bounded(name: str) -> None:
    begun = monotonic()
    try:
        check_grammar(json_schema_grammar(HOSTILE[name]), BYTES)
    except GrammarError as error:
        assert len(str(error)) < 1000
    assert monotonic() - begun < 120  # two deadlines of 5 s, on a busy machine
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2 * 2**20
