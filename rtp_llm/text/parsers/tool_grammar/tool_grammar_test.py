# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from hypothesis_jsonschema import from_schema

from rtp_llm.request.constraints import Grammar
from rtp_llm.testing.text.cutting import read
from rtp_llm.testing.text.matching import ByteVocabulary, matcher
from rtp_llm.testing.text.writing import WRITERS, Call, form_of
from rtp_llm.text.conversation import Tool, ToolChoice
from rtp_llm.text.grammar import GrammarError
from rtp_llm.text.parsers.deltas import OutputDelta, ToolArguments, ToolCallBegin
from rtp_llm.text.parsers.forms import CALLS
from rtp_llm.text.parsers.registry import tool_grammar
from rtp_llm.text.parsers.spec import ParserSpec

unhurried = settings(
    deadline=None,
    max_examples=8,
    phases=(Phase.generate,),  # a failure is shown as it is found: making it small takes minutes
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
WRITTEN = [writer for writer in WRITERS if writer != "llama3_json (tagged)"]
REQUIRED = ToolChoice("required")
REQUIRED_FIRST = ("pythonic", "llama4_pythonic", "olmo3", "lfm2", "gemma4")


def specials_of(writer: str) -> tuple[str, ...]:
    """Tokens that are special in the family's vocabulary; the first ends its messages."""
    markers = "".join(CALLS[form_of(writer)].markers)
    found = re.findall(
        r"｜DSML｜|<[|｜][^<>\s]+?[|｜]>|<\|\w+>|<\w+\|>|\[[A-Z_]+\]|\]<\]minimax\[>\[|<[/\w:]+>",
        markers,
    )
    special = dict.fromkeys(["<eos>", *found])
    if writer == "mistral (array)":
        del special["[ARGS]"]
    if writer == "gigachat3":
        del special["<|function_call|>"]
    if writer == "hy_v3":
        special = {each: None for each in special if ":opensource" not in each}
    return tuple(special)


class Grammars:
    """Grammars of a family, and texts in its tokens; `more` of those are special."""

    def __init__(self, writer: str, more: Sequence[str] = ()) -> None:
        self._form = form_of(writer)
        self.specials = (*specials_of(writer), *more)
        self._ids = {text: 256 + index for index, text in enumerate(self.specials)}
        self._vocabulary = ByteVocabulary(self.specials)

    def make(self, tools: Sequence[Tool], choice: ToolChoice = REQUIRED) -> Grammar:
        grammar = tool_grammar(self._form, tools, choice, self._ids)
        assert grammar is not None
        return grammar

    def accepts(self, grammar: Grammar, text: str) -> bool:
        made = matcher(grammar, self._vocabulary)
        ids = self.ids_of(text)
        taken = made.try_consume_tokens(ids)
        assert not made.is_error(), made.get_error()
        return taken == len(ids) and made.is_accepting()

    def ids_of(self, text: str) -> list[int]:
        ids: list[int] = []
        for chunk in re.split(f"({'|'.join(map(re.escape, self.specials))})", text):
            ids.extend([self._ids[chunk]] if chunk in self._ids else chunk.encode())
        return ids


ADD = Tool(
    "add",
    parameters={
        "type": "object",
        "properties": {
            "a": {"type": "integer", "minimum": 0},
            "unit": {"type": "string", "enum": ["cm", "in <b>"]},
            "label": {"type": "string"},
        },
        "required": ["a"],
        "additionalProperties": False,
    },
    strict=True,
)
NOW = Tool("now", parameters={"type": "object", "properties": {}, "additionalProperties": False})


@pytest.mark.parametrize("special", [(), ("<tool_call>", "</parameter>", "</arg_value>")])
@pytest.mark.parametrize("writer", WRITTEN)
def test_required_calls(writer: str, special: tuple[str, ...]) -> None:
    grammars, write = Grammars(writer, special), WRITERS[writer]
    grammar = grammars.make([ADD, NOW])
    add: Call = ("add", {"a": 1})
    for calls in (
        [add],
        [("now", {})],
        [("add", {"a": 12, "unit": "in <b>"}), ("now", {}), add],
        [("add", {"a": 1, "unit": "cm", "label": 'a "b" <c>'})],
    ):
        assert grammars.accepts(grammar, write(calls)), write(calls)
    wrong: list[list[Call]] = [
        [("add", {})],
        [("add", {"a": "1x"})],
        [("add", {"a": -1})],
        [("add", {"a": 1, "unit": "mm"})],
        [("add", {"a": 1, "more": 2})],
        [("sub", {"a": 1})],
    ]
    for calls in wrong:
        assert not grammars.accepts(grammar, write(calls)), write(calls)
    assert not grammars.accepts(grammar, "")
    assert not grammars.accepts(grammar, "Let me see.")
    assert not grammars.accepts(grammar, write([add])[:-1])


@pytest.mark.parametrize("writer", WRITTEN)
def test_named_and_single_calls(writer: str) -> None:
    grammars, write = Grammars(writer), WRITERS[writer]
    add, now = write([("add", {"a": 1})]), write([("now", {})])
    named = grammars.make([ADD, NOW], ToolChoice("required", names=("now",)))
    assert grammars.accepts(named, now)
    assert not grammars.accepts(named, add)
    single = grammars.make([ADD, NOW], ToolChoice("required", parallel=False))
    assert grammars.accepts(single, now)
    assert grammars.accepts(single, add)
    assert not grammars.accepts(single, write([("now", {}), ("now", {})]))


@pytest.mark.parametrize("writer", WRITTEN)
def test_strict_tools_may_be_called(writer: str) -> None:
    grammars, write = Grammars(writer), WRITERS[writer]
    add, wrong = write([("add", {"a": 1})]), write([("add", {"a": "x"})])
    undeclared = write([("sub", {"a": 1})])
    for parallel in True, False:
        auto = grammars.make([ADD, NOW], ToolChoice("auto", parallel=parallel))
        for text in ("", "Hello, (world) [1] {2} <3>", " \n", add):
            assert grammars.accepts(auto, text), text
        assert not grammars.accepts(auto, wrong)
        assert not grammars.accepts(auto, undeclared)
        two = write([("add", {"a": 1}), ("add", {"a": 2})])
        assert grammars.accepts(auto, two) is parallel
        if writer not in ("llama3_json", "pythonic"):
            assert grammars.accepts(auto, f"Let me see.\n{add}")
            assert not grammars.accepts(auto, f"Let me see.\n{wrong}")
    if writer in ("llama4_json", "llama4_pythonic"):
        marks = re.compile(r"<\|python_\w+\|>")
        assert not grammars.accepts(auto, marks.sub("", wrong))


def test_nothing_to_enforce() -> None:
    loose = Tool("now")
    assert tool_grammar("hermes", [loose], ToolChoice("auto")) is None
    assert tool_grammar("hermes", [ADD], ToolChoice("none")) is None
    assert tool_grammar("hermes", [ADD, loose], ToolChoice("auto", names=("now",))) is None
    assert tool_grammar("openai", [loose], ToolChoice("auto")) is None


def test_what_cannot_be_enforced_is_refused() -> None:
    with pytest.raises(GrammarError, match=r"the tokenizer has no special token <\|start\|>"):
        tool_grammar("openai", [ADD], ToolChoice("auto"))
    channels = {text: 256 + index for index, text in enumerate(specials_of("openai"))}
    with pytest.raises(GrammarError, match="'a b' cannot be the name of a function on a channel"):
        tool_grammar("openai", [Tool("a b")], REQUIRED, channels)
    with pytest.raises(GrammarError, match="none of the tools"):
        tool_grammar("hermes", [ADD], ToolChoice("required", names=("sub",)))
    texts = Tool("f", parameters={"properties": {"a": {"type": "string", "pattern": "x"}}})
    for form in ("qwen3_coder", "glm45", "deepseek_v32"):
        assert tool_grammar(form, [texts], REQUIRED) is not None
        with pytest.raises(GrammarError, match="'a': pattern cannot") as caught:
            tool_grammar(form, [Tool("f", "", texts.parameters, strict=True)], REQUIRED)
        assert caught.value.keyword == "pattern"
    objects = Tool("f", parameters={"minProperties": 2}, strict=True)
    with pytest.raises(GrammarError, match="'f': minProperties cannot"):
        tool_grammar("pythonic", [objects], REQUIRED)
    named = Tool("f", parameters={"properties": {"a b": {}}})
    for form in ("qwen3_coder", "pythonic"):
        with pytest.raises(GrammarError, match="cannot name an argument 'a b'"):
            tool_grammar(form, [named], REQUIRED)


NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "parts": {"type": "array", "items": {"$ref": "#/$defs/part"}},
        "kind": {"enum": ["a", 2, None]},
        "size": {"anyOf": [{"type": "integer", "maximum": 9}, {"type": "null"}]},
        "free": {"type": "object"},
    },
    "required": ["parts"],
    "$defs": {
        "part": {
            "type": "object",
            "properties": {"n": {"type": "integer"}, "of": {"type": "array"}},
        },
    },
}


@pytest.mark.parametrize("writer", ["gemma4", "minimax_m3"])
def test_nested_values_in_a_syntax_of_their_own(writer: str) -> None:
    grammars, write = Grammars(writer), WRITERS[writer]
    tool = Tool("f", parameters=NESTED)
    grammar = grammars.make([tool])
    part = {"n": 1}
    arguments: dict[str, Any]
    for arguments in (
        {"parts": []},
        {"parts": [part, part], "kind": 2},
        {"parts": [{"n": 1, "of": []}], "kind": "a", "size": None},
        {"parts": [part], "size": 9},
    ):
        text = write([("f", arguments)])
        assert grammars.accepts(grammar, text), text
        deltas = read(ParserSpec(writer, tools=(tool,)), [text])
        assert calls_of(deltas) == [("f", arguments)]
    for arguments in (
        {},
        {"parts": [], "kind": "b"},
        {"parts": [{"n": "x"}]},
        {"parts": [], "size": 10},
    ):
        assert not grammars.accepts(grammar, write([("f", arguments)])), arguments


@pytest.mark.parametrize("writer", ["gemma4", "minimax_m3"])
def test_nested_values_that_cannot_be_enforced(writer: str) -> None:
    grammars = Grammars(writer)
    strict = Tool("f", "", {"properties": {"a": {"type": "array", "minItems": 2}}}, strict=True)
    with pytest.raises(GrammarError, match="'f': minItems cannot be enforced"):
        grammars.make([strict])
    strict = Tool("f", "", {"properties": {"a": {"enum": [[1]]}}}, strict=True)
    with pytest.raises(GrammarError, match="an object or array in enum"):
        grammars.make([strict])
    grammars.make([Tool("f", "", {"properties": {"a": {"enum": [[1], {}]}}})])
    inner = {"type": "object", "properties": {"b c": {}}}
    named = Tool("f", parameters={"properties": {"a": inner}})
    with pytest.raises(GrammarError, match="cannot name an argument 'b c'"):
        grammars.make([named])


def test_objects_of_any_members() -> None:
    grammars = Grammars("gemma4")
    grammar = grammars.make([Tool("f", parameters={"properties": {"free": {"type": "object"}}})])
    free = {"free": {"a": [1, {"b": "text"}], "c": True, "d": None}}
    assert grammars.accepts(grammar, WRITERS["gemma4"]([("f", free)]))


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


@pytest.mark.parametrize("writer", WRITTEN)
def test_calls_that_are_accepted_are_read_as_they_were_meant(writer: str) -> None:
    grammars = Grammars(writer)

    @unhurried
    @given(declared_and_called(writer in REQUIRED_FIRST))
    def check(case: tuple[list[Tool], list[Call]]) -> None:
        declared, calls = case
        assume("</" not in json.dumps(calls))  # may end a text, which no form has an escape for
        text = WRITERS[writer](calls)
        assert grammars.accepts(grammars.make(declared), text), text
        deltas = read(ParserSpec(tool_calls=form_of(writer), tools=tuple(declared)), [text])
        assert calls_of(deltas) == calls, text

    check()


def calls_of(deltas: Sequence[OutputDelta]) -> list[Call]:
    names = [delta.name for delta in deltas if isinstance(delta, ToolCallBegin)]
    texts = [""] * len(names)
    for delta in deltas:
        if isinstance(delta, ToolArguments):
            texts[delta.index] += delta.text
    return [(name, json.loads(text)) for name, text in zip(names, texts, strict=True)]


@pytest.mark.parametrize("parameters", [{}, {"type": "object", "properties": {}}])
def test_a_tool_without_parameters_gets_an_empty_object(parameters: dict[str, Any]) -> None:
    grammars = Grammars("hermes")
    grammar = grammars.make([Tool("now", parameters=parameters)])
    call = '<tool_call>\n{{"name": "now", "arguments": {}}}\n</tool_call>'
    assert grammars.accepts(grammar, call.format("{}"))
    assert not grammars.accepts(grammar, call.format('{"a": 1}'))
