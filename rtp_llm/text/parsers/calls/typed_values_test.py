# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest

from rtp_llm.text.parsers.calls.typed_values import ANY, json_of, referenced, types_of

ROOT: dict[str, Any] = {"$defs": {"a/b": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}}}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"type": "number"}, {"number", "integer"}),
        ({"type": "string", "nullable": True}, {"string", "null"}),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, {"string", "array"}),
        ({"oneOf": [{"type": "boolean"}, {"$ref": "#/$defs/a~1b"}]}, {"boolean", "integer"}),
        ({"allOf": [{"type": ["string", "null"]}, {"type": "string"}]}, {"string"}),
        ({"enum": ["a", 1, None]}, {"string", "integer", "null"}),
        ({"const": {"a": 1}}, {"object"}),
        ({"$ref": "#/$defs/loop"}, ANY),
        ({"$ref": "#/none"}, ANY),
        ({"type": []}, ANY),
        ({}, ANY),
        (True, ANY),
        (None, ANY),
    ],
)
def test_types_that_a_schema_allows(schema: object, types: set[str]) -> None:
    assert types_of(schema, ROOT) == types


def test_references() -> None:
    assert referenced("#", ROOT) is ROOT
    assert referenced("#/$defs/a~1b", ROOT) == {"type": "integer"}
    assert referenced("#/$defs/none/x", ROOT) is None


@pytest.mark.parametrize(
    ("text", "types", "json"),
    [
        ("5", "string", '"5"'),
        (' a "b"\n', "string", '" a \\"b\\"\\n"'),
        ("5", "integer", "5"),
        (" 5 ", "integer", "5"),
        ("+05", "integer", "5"),
        ("5.0", "integer", "5.0"),
        ("five", "integer", '"five"'),
        ("1e3", "number integer", "1e3"),
        (".5", "number", "0.5"),
        ("1e999", "number", "1e999"),
        ("NaN", "number", '"NaN"'),
        ("True", "boolean", "true"),
        ("yes", "boolean", '"yes"'),
        ("None", "null", "null"),
        ("None", "string null", "null"),
        ("null and void", "string null", '"null and void"'),
        ('{"a":  1}', "object", '{"a":  1}'),
        ("{'a': (1, None)}", "object", '{"a": [1, null]}'),
        ("('a',)", "array", '["a"]'),
        ("[1", "array", '"[1"'),
        ("{1, 2}", "object array", '"{1, 2}"'),
        ("[" * 100_000, "array", None),
        ("9" * 5_000, "integer", None),
        ("7", "string integer", "7"),
        ("[1]", "string", '"[1]"'),
    ],
)
def test_json_of_texts(text: str, types: str, json: str | None) -> None:
    assert json_of(text, frozenset(types.split())) == (f'"{text}"' if json is None else json)


def test_a_value_of_any_type_is_json_where_it_can_be() -> None:
    assert json_of('{"a": 1}', ANY) == '{"a": 1}'
    assert json_of("some words", ANY) == '"some words"'
