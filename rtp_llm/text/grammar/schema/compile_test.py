# SPDX-License-Identifier: Apache-2.0
"""What schemas come to, and why some are refused."""

from __future__ import annotations

from typing import Any

import pytest

from rtp_llm.testing.text.matching import accepts, matcher
from rtp_llm.text.grammar import GrammarError, json_schema_grammar
from rtp_llm.text.grammar.schema.compile import compile_schema

KEYED = {"type": "object", "properties": {"a": {}, "b": {}}}
CASES: list[tuple[Any, list[str], list[str]]] = [
    # schema, accepted, rejected
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, ["1", '"a"'], ["1.5", "null"]),
    (
        {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], **KEYED},
        ['{"a":1}'],
        ['{"a":1,"b":2}'],
    ),
    ({"not": {"type": ["string", "object"]}}, ["1", "[]", "null"], ['"a"', "{}"]),
    ({"not": {"enum": ["a", "ab", 3]}}, ['"b"', '""', "2", "3.5"], ['"a"', '"ab"', "3"]),
    ({"not": {"required": ["a"]}}, ["{}", '{"b":1}'], ["1", '{"a":1}', '{"\\u0061":1}']),
    ({"type": "integer", "not": {"const": 5}, "minimum": 5}, ["6"], ["5", "4"]),
    (
        {"if": {"properties": {"a": {"const": 1}}, "required": ["a"]}, "then": {"required": ["b"]}}
        | KEYED,
        ['{"a":1,"b":0}', '{"a":2}', "{}"],
        ['{"a":1}'],
    ),
    (KEYED | {"dependentRequired": {"a": ["b"]}}, ["{}", '{"b":1}', '{"a":1,"b":1}'], ['{"a":1}']),
    (
        KEYED | {"dependentSchemas": {"a": {"properties": {"b": {"type": "null"}}}}},
        ['{"b":1}', '{"a":1,"b":null}'],
        ['{"a":1,"b":1}'],
    ),
    ({"propertyNames": {"pattern": "^x"}}, ['{"x1":1}', "{}"], ['{"y":1}']),
    ({"propertyNames": {"enum": ["p", "q"]}}, ['{"p":1,"q":2}', "{}"], ['{"r":1}']),
    ({"propertyNames": {"maxLength": 2}, "required": ["abc"]}, ["1"], ['{"abc":1}']),
    (
        KEYED | {"patternProperties": {"^a": {"type": "null"}}, "maxProperties": 1},
        ['{"a":null}', '{"aa":null}', '{"b":1}'],
        ['{"a":1}', '{"a":null,"b":1}'],
    ),
    (
        KEYED | {"propertyNames": {"pattern": "^a"}, "additionalProperties": False},
        ['{"a":1}', "{}"],
        ['{"b":1}', '{"aa":1}'],
    ),
    (KEYED | {"minProperties": 2, "additionalProperties": False}, ['{"a":1,"b":1}'], ['{"a":1}']),
    (
        KEYED | {"maxProperties": 1},
        ['{"a":1}', '{"z":1}', "{}"],
        ['{"a":1,"b":1}', '{"a":1,"z":1}'],
    ),
    ({"contains": {"const": 1}, "maxItems": 3}, ["[1]", "[0,1]", "[1,1,1]"], ["[]", "[0,0,0]"]),
    ({"not": {"contains": {"const": 1}}}, ["[]", "[2]"], ["[2,1]"]),
    (
        {"type": "array", "contains": {"const": 1}},
        ["[1]", "[0,{},1,0]", "[1,1" + ",2" * 30 + "]"],
        ["[]", "[0,0]"],
    ),
    (
        {"type": "array", "contains": {"const": 1}, "minContains": 2, "maxContains": 3},
        ["[1,1]", "[0,1,0,1,1,0]"],
        ["[1]", "[1,0]", "[1,0,1,1,0,1]"],
    ),
    ({"type": "array", "contains": {"const": 1}, "minContains": 0, "maxContains": 1}, ["[]"], []),
    ({"contains": {"const": 1}, "minContains": 3, "maxContains": 2}, ["{}"], ["[1,1,1]"]),
    (
        {"not": {"contains": {"const": 1}, "minContains": 2, "maxContains": 3}, "type": "array"},
        ["[]", "[1]", "[1,1,0,1,1]"],
        ["[1,1]", "[1,0,1]", "[1,1,1]"],
    ),
    (
        {"prefixItems": [{"type": "null"}] * 20, "contains": {"const": 1}, "type": "array"},
        ["[" + "null," * 20 + "1]"],
        ["[" + "null," * 19 + "null]"],
    ),
    (
        {"unevaluatedItems": {"type": "null"}, "contains": {"const": 1}, "type": "array"},
        ["[1]", "[null,1,null,1]"],
        ["[]", "[null]", "[1,2]"],
    ),
    ({"uniqueItems": True, "maxItems": 1}, ["[1]"], ["[1,2]"]),
    (
        {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "minItems": 1},
        ['["c"]', '["b","a"]', '["c","a","b"]'],
        ["[]", '["a","a"]', '["a","b","c","a"]', '["d"]'],
    ),
    (
        {"prefixItems": [{"type": "string"}], "items": {"type": ["boolean", "null"]}}
        | {"type": "array", "uniqueItems": True},
        ['["a",true,null,false]', '["a"]', "[]"],
        ['["a",true,true]', "[true]"],
    ),
    (
        {"items": {"type": "integer", "minimum": 1, "maximum": 9}, "maxItems": 2}
        | {"type": "array", "uniqueItems": True},
        ["[9,1]", "[3]"],
        ["[9,9]", "[0]"],
    ),
    ({"items": {"type": "null"}, "contains": False, "minContains": 0}, ["[null]"], ["[1]"]),
    ({"type": "string", "nullable": True}, ['"a"', "null"], ["1"]),
    ({"enum": [1, "a", [2], {"k": None}], "type": ["integer", "array"]}, ["1", "[2]"], ['"a"']),
    ({"const": {"b": 1, "a": [True]}}, ['{"b": 1, "a": [true]}'], ['{"b": 1}']),
    ({"allOf": [{"multipleOf": 4}, {"multipleOf": 6}], "type": "integer"}, ["12", "0"], ["4", "6"]),
    (
        {"type": "number", "exclusiveMinimum": 1, "maximum": 1.5},
        ["1.5", "1.000001"],
        ["1", "1.0", "1.50001", "2"],
    ),
    (
        {"type": "number", "minimum": -0.5, "exclusiveMaximum": 0},
        ["-0.5", "-0.000001"],
        ["0", "-0", "-0.50001"],
    ),
    ({"anyOf": [False, {"type": "null"}]}, ["null"], ["1"]),
    ({"minimum": 3, "exclusiveMinimum": True, "type": "integer"}, ["4"], ["3"]),
    (
        {"items": [{"type": "null"}], "additionalItems": False},
        ["[null]", "[]"],
        ["[1]", "[null,1]"],
    ),
    ({"type": "object", "properties": {'q"': {"type": "null"}}}, ['{"q\\"":null}'], ['{"q\\"":1}']),
    ({"properties": {"a": {"type": "null"}}, "type": "object"}, ['{"b":1}'], ['{"\\u0061":1}']),
    (
        {
            "$defs": {
                "t": {"properties": {"n": {"$ref": "#/$defs/t"}}, "additionalProperties": False}
            }
        }
        | {"$ref": "#/$defs/t", "type": "object"},
        ["{}", '{"n":{"n":{}}}'],
        ['{"n":{"m":1}}'],
    ),
    (
        {"properties": {"a": {"$anchor": "x", "type": "null"}, "b": {"$ref": "#x"}}},
        ["{}"],
        ['{"b":1}'],
    ),
    (
        {
            "$id": "http://example.com/words",
            "$ref": "list",
            "$defs": {
                "list": {
                    "$id": "list",
                    "type": "array",
                    "items": {"$dynamicRef": "#item"},
                    "$defs": {"any": {"$dynamicAnchor": "item"}},
                },
                "word": {"$dynamicAnchor": "item", "type": "string"},
            },
        },
        ['["a"]', "[]"],
        ["[1]"],
    ),
    ({"format": "iri", "type": "string"}, ['"http://ü.example/é?q"'], ['"http://a b"', '"é"']),
    ({"format": "uri-template", "type": "string"}, ['"/a/{b,c*}{?d:3}"'], ['"/a/{b"', '"a b"']),
    ({"format": "idn-email", "type": "string"}, ['"ü@ö.example"'], ['"ü"', '"a@-b"']),
    ({"unevaluatedProperties": False, **KEYED}, ['{"a":1}'], ['{"c":1}']),
    (
        KEYED
        | {"unevaluatedProperties": False}
        | {"anyOf": [{"properties": {"c": {"const": 1}}, "required": ["c"]}, {"required": ["a"]}]},
        ['{"c":1}', '{"a":1}', '{"a":1,"b":2,"c":1}'],
        ['{"a":1,"c":2}', '{"a":1,"d":1}', "{}"],
    ),
    (
        {"allOf": [{"prefixItems": [True]}], "unevaluatedItems": {"type": "null"}, "type": "array"},
        ["[]", "[1]", "[1,null]"],
        ["[1,2]"],
    ),
]


@pytest.mark.parametrize(("schema", "good", "bad"), CASES, ids=lambda value: str(value)[:60])
def test_verdicts(schema: Any, good: list[str], bad: list[str]) -> None:
    found = matcher(json_schema_grammar(schema))
    assert [text for text in good if not accepts(found, text)] == []
    assert [text for text in bad if accepts(found, text)] == []


INT64 = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
NUMBERS = [
    (INT64, ["0", str(2**63 - 1024), str(1024 - 2**63)], [str(2**63), str(-(2**63) - 1)]),
    ({**INT64, "type": "number"}, ["0.5", "-1000.5", str(2**63 - 1024)], [str(2**63)]),
    ({"type": "integer"}, [str(10**18), str(-(10**18)), "0"], ["1" * 20, "-" + "1" * 20]),
    ({"type": "integer", "minimum": 5}, ["5", str(10**18)], ["4", "1" * 20]),
    ({"type": "integer", "minimum": 2**62}, [str(2**62), str(2**63 - 1024)], [str(2**63)]),
    ({"type": "integer", "exclusiveMaximum": -(2**62)}, [str(-(2**62) - 1024)], [str(-(2**62))]),
    ({"type": "integer", "maximum": 2**53 + 1}, [str(2**53)], [str(2**53 + 2)]),
    ({"type": "integer", "maximum": 10**400, "minimum": -(10**400)}, ["7"], ["7" * 30]),
    ({"type": "number", "maximum": 1.7976931348623157e308}, ["1.5"], []),
]


@pytest.mark.parametrize(("schema", "good", "bad"), NUMBERS, ids=lambda value: str(value)[:60])
def test_wide_and_missing_bounds(schema: Any, good: list[str], bad: list[str]) -> None:
    found = matcher(json_schema_grammar({"type": "array", "items": schema, "maxItems": 1}))
    good, bad = ([f"[{each}]" for each in texts] for texts in (good, bad))
    assert [text for text in good if not accepts(found, text)] == []
    assert [text for text in bad if accepts(found, text)] == []


UNTAKEN: list[tuple[Any, str]] = [
    ({"type": "integer", "minimum": 2**63 - 1}, "minimum"),
    ({"type": "string", "pattern": "^a$", "minLength": 5}, "pattern"),
    ({"type": "string", "pattern": r"^\p{Nonsense}$"}, "pattern"),
]


@pytest.mark.parametrize(("schema", "keyword"), UNTAKEN, ids=lambda value: str(value)[:60])
def test_what_the_library_refuses_has_a_place_or_is_left_out(schema: Any, keyword: str) -> None:
    whole = {"properties": {"v": schema}, "required": ["v"], "type": "object"}
    with pytest.raises(GrammarError, match=f"{keyword} at #/properties/v: ") as refusal:
        json_schema_grammar(whole)
    assert refusal.value.keyword == keyword
    found = matcher(json_schema_grammar(whole, strict=False))
    value = "17" if keyword == "minimum" else '"abcdef"'
    assert accepts(found, f'{{"v":{value}}}')


@pytest.mark.parametrize("keyword", ["Items", "Length", "Properties", "Contains"])
@pytest.mark.parametrize("count", [2**31, 2**32, 2**53, 2**64, 10**30])
def test_counts_that_no_answer_reaches(keyword: str, count: int) -> None:
    kind = {"Length": "string", "Properties": "object"}.get(keyword, "array")
    value = {"string": '"a"', "object": '{"a":1}', "array": "[1]"}[kind]
    of = {"type": kind, **({"contains": {"const": 1}} if keyword == "Contains" else {})}
    for free in ({f"max{keyword}": count}, {"not": {**of, f"min{keyword}": count}}):
        assert accepts(matcher(json_schema_grammar({**of, **free})), value)
    nested = {"type": "object", "properties": {"v": {**of, f"min{keyword}": count}}}
    with pytest.raises(GrammarError, match=f"^min{keyword} at #/properties/v asks for ") as refusal:
        json_schema_grammar(nested)
    assert refusal.value.keyword == f"min{keyword}"
    assert accepts(matcher(json_schema_grammar(nested, strict=False)), f'{{"v":{value}}}')


REFUSED: list[tuple[Any, str | None, str]] = [
    (False, None, "no finite JSON value"),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, None, "no finite"),
    ({"properties": {"x": {"uniqueItems": True}}}, "uniqueItems", "uniqueItems at #/properties/x"),
    ({"items": {"type": "string"}, "uniqueItems": True}, "uniqueItems", "values are listed"),
    ({"items": {"enum": [*range(9)]}, "uniqueItems": True}, "uniqueItems", "256 orders"),
    ({"contains": {"const": 1}, "minContains": 17}, "contains", "up to 16 items"),
    ({"allOf": [{"contains": {"const": i}} for i in range(6)]}, "contains", "256 choices"),
    ({"allOf": [{"pattern": f"a{i}"} for i in range(29)]}, "pattern", "29 patterns of one string"),
    (
        KEYED | {"propertyNames": {"pattern": "^a"}, "additionalProperties": {"type": "null"}},
        "propertyNames",
        "additionalProperties",
    ),
    ({"not": {"type": "integer"}}, "type", "type at #/not"),
    ({"not": {"pattern": "a"}}, "pattern", "cannot be negated"),
    ({"pattern": "(?=a)b"}, "pattern", "look-ahead"),
    ({"format": "regex"}, "format", "'regex'; known are date"),
    ({"$ref": "other.json"}, "$ref", "another document"),
    ({"$ref": "#/nowhere"}, "$ref", "leads nowhere"),
    ({"$ref": "#"}, "$ref", "by itself"),
    ({"type": "text"}, "type", "'text' is not a JSON type"),
    ({"minLength": -1}, "minLength", "not a count"),
    ({"required": True}, "required", "not a list"),
    ({"items": 3}, None, "a schema is an object or a boolean"),
    ({"minProperties": 2}, "minProperties", "same one twice"),
    ({"multipleOf": 0.123456}, "multipleOf", "digits"),
    ({"const": 1e300}, "enum", "exponent|bits"),
    ({"$schema": "http://example.com/own"}, "$schema", "json-schema.org"),
    ({"a": "x" * 300_000}, None, "262144"),
    ({"extends": {}}, "extends", "older draft"),
    ({"not": {"unevaluatedItems": False, "allOf": [{}]}}, "unevaluatedItems", "with allOf"),
    ({"const": "\ud800"}, "enum", "surrogate"),
]


@pytest.mark.parametrize(("schema", "keyword", "reason"), REFUSED, ids=lambda v: str(v)[:60])
def test_refusals_name_the_keyword(schema: Any, keyword: str | None, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason) as refusal:
        json_schema_grammar(schema)
    assert refusal.value.keyword == keyword


def test_lenient_leaves_out_what_is_not_supported() -> None:
    schema = {"items": {"type": "integer", "format": "odd"}, "uniqueItems": True, "type": "array"}
    found = matcher(json_schema_grammar(schema, strict=False))
    assert accepts(found, "[1, 1]")
    assert not accepts(found, '["a"]')


def test_a_definition_is_written_once() -> None:
    leaf = {"$ref": "#/$defs/leaf"}
    schema = {"$defs": {"leaf": {"type": "string"}}, "type": "array", "prefixItems": [leaf, leaf]}
    written = compile_schema(schema)
    assert written["$defs"] == {"n0": {"type": "string"}}
