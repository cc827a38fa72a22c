# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from typing import Any

import pytest

from rtp_llm.testing.text.cutting import read
from rtp_llm.testing.text.tool_grammars import (
    ADD,
    NOW,
    REQUIRED,
    WRITTEN,
    Grammars,
    calls_of,
    specials_of,
)
from rtp_llm.testing.text.writing import WRITERS, Call
from rtp_llm.text.conversation import Tool, ToolChoice
from rtp_llm.text.grammar import GrammarError
from rtp_llm.text.parsers.registry import tool_grammar
from rtp_llm.text.parsers.spec import ParserSpec


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


@pytest.mark.parametrize("parameters", [{}, {"type": "object", "properties": {}}])
def test_a_tool_without_parameters_gets_an_empty_object(parameters: dict[str, Any]) -> None:
    grammars = Grammars("hermes")
    grammar = grammars.make([Tool("now", parameters=parameters)])
    call = '<tool_call>\n{{"name": "now", "arguments": {}}}\n</tool_call>'
    assert grammars.accepts(grammar, call.format("{}"))
    assert not grammars.accepts(grammar, call.format('{"a": 1}'))
