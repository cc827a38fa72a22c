# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from hypothesis_jsonschema import from_schema

from rtp_llm.testing.text.cutting import read
from rtp_llm.testing.text.tool_grammars import ADD, NOW, ORDINARY, WRITTEN, Grammars, calls_of
from rtp_llm.testing.text.writing import WRITERS, Call, dumps, format_of
from rtp_llm.text.conversation import Tool
from rtp_llm.text.parsers.formats import CALLS
from rtp_llm.text.parsers.spec import ParserSpec

unhurried = settings(
    deadline=None,
    max_examples=8,
    phases=(Phase.generate,),  # a failure is shown as it is found: making it small takes minutes
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
REQUIRED_FIRST = ("pythonic", "llama4_pythonic", "olmo3", "lfm2", "gemma4")

POINT: dict[str, Any] = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "label": {"type": "string"}},
    "required": ["x"],
    "additionalProperties": False,
}
# The library takes no escapes of control characters.
LETTERS = st.characters(exclude_categories=("Cs", "Cc"), include_characters="\n\t")
TEXTS = st.text(LETTERS, max_size=12)
POINTS = st.fixed_dictionaries({"x": st.integers(-(10**18), 10**18)}, optional={"label": TEXTS})
# A schema that may refer to a point, and values of it.
VALUES: list[tuple[dict[str, Any], st.SearchStrategy[Any]]] = [
    *(
        (schema, from_schema(schema))
        for schema in (
            {"type": "integer", "minimum": -5, "maximum": 500},
            {"type": "boolean"},
            {"type": "null"},
            {"enum": ["a", "b c", "d\ne"]},
            {"enum": ["one", 2, None]},
        )
    ),
    ({"type": "string"}, TEXTS),
    # The library takes no exponents where there are bounds.
    ({"type": "number", "minimum": -5}, st.integers(-500, 5000).map(lambda n: n / 100)),
    ({"type": "number"}, st.floats(allow_nan=False, allow_infinity=False)),
    ({"type": ["string", "null"]}, st.none() | TEXTS),
    ({"type": "array", "items": {"type": "string"}}, st.lists(TEXTS, max_size=3)),
    ({"$ref": "#/$defs/point"}, POINTS),
    ({"type": "array", "items": {"$ref": "#/$defs/point"}}, st.lists(POINTS, max_size=2)),
]
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
Declared: TypeAlias = tuple[Tool, Mapping[str, st.SearchStrategy[Any]]]


@st.composite
def tools(draw: st.DrawFn) -> Declared:
    """A tool, and values of its arguments."""
    kinds = draw(st.dictionaries(NAMES, st.integers(0, len(VALUES) - 1), max_size=4))
    parameters = {
        "type": "object",
        "properties": {name: VALUES[kind][0] for name, kind in kinds.items()},
        "required": [name for name in kinds if draw(st.booleans())],
        "additionalProperties": False,
        "$defs": {"point": POINT},
    }
    tool = Tool(draw(NAMES), "", parameters, draw(st.booleans()))
    return tool, {name: VALUES[kind][1] for name, kind in kinds.items()}


def in_order(tool: Tool, arguments: Mapping[str, Any], required_first: bool) -> dict[str, Any]:
    """As a grammar wants them: in the order of the schema."""
    names = list(tool.parameters["properties"])
    if required_first:
        names.sort(key=lambda name: name not in tool.parameters["required"])
    return {name: _ordered(arguments[name]) for name in names if name in arguments}


def _ordered(value: Any) -> Any:
    if isinstance(value, list):
        return [_ordered(item) for item in value]
    if isinstance(value, dict):
        return {key: value[key] for key in ("x", "label") if key in value}
    return value


@st.composite
def declared_and_called(draw: st.DrawFn, required_first: bool) -> tuple[list[Tool], list[Call]]:
    declared = draw(st.lists(tools(), min_size=1, max_size=3, unique_by=lambda one: one[0].name))
    calls: list[Call] = []
    for tool, values in draw(st.lists(st.sampled_from(declared), min_size=1, max_size=3)):
        required = tool.parameters["required"]
        names = [name for name in values if name in required or draw(st.booleans())]
        arguments = {name: draw(values[name]) for name in names}
        calls.append((tool.name, in_order(tool, arguments, required_first)))
    return [tool for tool, _ in declared], calls


# What ends a text argument, which these forms have no escape for.
TEXT_ENDS = {
    **dict.fromkeys(("qwen3_coder", "seed_oss", "minimax_m2"), "</parameter>"),
    **dict.fromkeys(("deepseek_v32", "deepseek_v4"), "</｜DSML｜parameter>"),
    **dict.fromkeys(("glm45", "glm47", "hy_v3"), "</arg_value>"),
    "hy_v3 (released)": "</arg_value:opensource>",
    "gemma4": '<|"|>',
    "minimax_m3": "]<]minimax[>[",
}


def has_text_end(writer: str, calls: Sequence[Call]) -> bool:
    end = TEXT_ENDS.get(writer)
    return end is not None and json.dumps(end, ensure_ascii=False)[1:-1] in dumps(calls)


def check_accepted_and_read(writer: str, declared: Sequence[Tool], calls: Sequence[Call]) -> None:
    """Calls are accepted, and read as they were meant."""
    grammars, write = Grammars(writer), WRITERS[writer]
    written = write([(name, grammars.spell_out(arguments)) for name, arguments in calls])
    assert grammars.accepts(grammars.make(declared), written), written
    text = written.replace(ORDINARY, "")
    deltas = read(ParserSpec(tool_calls=format_of(writer), tools=tuple(declared)), [text])
    assert calls_of(deltas) == calls, text


@pytest.mark.parametrize("writer", WRITTEN)
def test_calls_that_are_accepted_are_read_as_they_were_meant(writer: str) -> None:
    @unhurried
    @given(declared_and_called(writer in REQUIRED_FIRST))
    def check(case: tuple[list[Tool], list[Call]]) -> None:
        declared, calls = case
        assume(not has_text_end(writer, calls))
        check_accepted_and_read(writer, declared, calls)

    check()


@pytest.mark.parametrize("writer", WRITTEN)
def test_markers_in_arguments_are_text(writer: str) -> None:
    markers = ("<eos>", "<tool_calls>", "</tool_call>", *CALLS[format_of(writer)].markers)
    for marker in dict.fromkeys(markers):
        calls: list[Call] = [
            ("add", {"a": 1, "label": marker}),
            ("add", {"a": 2, "label": f"x {marker}\n{marker} y"}),
        ]
        if not has_text_end(writer, calls):
            check_accepted_and_read(writer, [ADD, NOW], calls)
