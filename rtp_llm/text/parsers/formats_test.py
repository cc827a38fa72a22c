# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from rtp_llm.testing.text.cutting import read, read_every_way
from rtp_llm.testing.text.writing import TOOLS, WRITERS, Call, dumps, format_of
from rtp_llm.text.parsers.deltas import OutputDelta, TextDelta, ToolArguments, ToolCallBegin
from rtp_llm.text.parsers.formats import CALLS
from rtp_llm.text.parsers.spec import ParserSpec

ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"city": "Paris"},
    {"days": 3, "ratio": -0.5, "metric": True},
    {"note": None, "metric": False},
    {"tags": ["a", "b, c", "[d]"], "where": {"x": {"y": [1, 2.5, "}"]}}},
    {"city": 'say "hi"\\ \t</x> <a> {b} é\U0001f600'},
    {"city": "two\nlines\n", "note": "it's"},
    {"city": "", "note": "null, and more"},
    {"city": "f(a=1), [2]"},
]
CALL_LISTS: list[list[Call]] = [
    *([("weather", arguments)] for arguments in ARGUMENTS),
    [("now", {})],
    [("ns.run-it", {"code": "for i in x:\n    print(i)\n"})],
    [("weather", {"city": "Rome"}), ("now", {})],
    [("now", {}), ("now", {}), ("weather", {"days": 12})],
    [("weather", {"city": "a"}), ("weather", {"city": "a"})],
]
AT_THE_BEGINNING_ONLY = ("llama3_json", "pythonic")


def spec(writer: str) -> ParserSpec:
    return ParserSpec(tool_calls=format_of(writer), tools=TOOLS)


def calls_of(deltas: Sequence[OutputDelta]) -> list[tuple[str, Any]]:
    """Names and arguments; the arguments' text where it is no JSON."""
    calls: list[tuple[str, Any]] = []
    for delta in deltas:
        if isinstance(delta, ToolCallBegin):
            calls.append((delta.name, ""))
            assert delta.index == len(calls) - 1
        if isinstance(delta, ToolArguments):
            assert delta.index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + delta.text)
    return calls


def parsed(calls: Sequence[tuple[str, str]]) -> list[tuple[str, Any]]:
    return [(name, json.loads(text)) for name, text in calls]


def text_of(deltas: Sequence[OutputDelta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


def message(writer: str, text: str) -> str:
    """Text before a call, as the family writes it."""
    if format_of(writer) == "openai" and text:
        return f"<|channel|>commentary<|message|>{text}<|end|><|start|>assistant"
    return text


def message_text(writer: str, text: str) -> str:
    """An answer without what ends a message of the family."""
    return text.replace("<|message_sep|>", "") if format_of(writer) == "gigachat3" else text


def test_every_form_has_a_writer() -> None:
    assert {format_of(writer) for writer in WRITERS} == set(CALLS)


@pytest.mark.parametrize("writer", WRITERS)
def test_calls_are_read_as_they_were_meant(writer: str) -> None:
    for calls in CALL_LISTS:
        text = WRITERS[writer](calls)
        deltas = read_every_way(spec(writer), text)
        assert parsed(calls_of(deltas)) == calls, text
        assert text_of(deltas) == "", text


@pytest.mark.parametrize("writer", WRITERS)
def test_calls_of_other_tools_are_text_where_only_some_may_be_called(writer: str) -> None:
    only = ParserSpec(format_of(writer), tools=TOOLS[:1], only_tools=True)
    weather: Call = ("weather", {"city": "Rome"})
    code: Call = ("ns.run-it", {"code": "print"})
    text = WRITERS[writer]([code])
    deltas = read_every_way(only, text)
    if format_of(writer) == "openai":
        assert deltas == [TextDelta(dumps(code[1]))], "headers are not part of a message"
    else:
        assert deltas == [TextDelta(message_text(writer, text))]
    deltas = read_every_way(only, WRITERS[writer]([weather, code]))
    assert parsed(calls_of(deltas)) == [weather]
    assert "print" in text_of(deltas)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(
    ("before", "after"), [("I'll look.\n\n", ""), ("A < b <tool", "<|im_end|>"), ("\n\n", "\n")]
)
def test_text_around_calls(writer: str, before: str, after: str) -> None:
    if writer in AT_THE_BEGINNING_ONLY and before.strip():
        return
    after = "<|return|>" if format_of(writer) == "openai" else after
    for calls in CALL_LISTS[9:12]:
        text = message(writer, before) + WRITERS[writer](calls) + after
        deltas = read_every_way(spec(writer), text)
        assert parsed(calls_of(deltas)) == calls, text
        assert text_of(deltas) == (before if before.strip() else ""), text


@pytest.mark.parametrize("writer", WRITERS)
def test_a_cut_answer_keeps_what_has_come(writer: str) -> None:
    for calls in CALL_LISTS[4], CALL_LISTS[11]:
        whole = WRITERS[writer](calls)
        all_calls = calls_of(read(spec(writer), [whole]))
        for length in range(len(whole)):
            deltas = read(spec(writer), [whole[:length]])
            cut = calls_of(deltas)
            assert [name for name, _ in cut] == [name for name, _ in all_calls[: len(cut)]]
            for (_, some), (_, everything) in zip(cut[:-1], all_calls[:-1], strict=False):
                assert some == everything
            if not cut and format_of(writer) != "openai":
                assert text_of(deltas) == message_text(writer, whole[:length])


@pytest.mark.parametrize("writer", WRITERS)
def test_an_answer_without_calls_is_text(writer: str) -> None:
    for text in (
        "",
        " ",
        "Hello, world.\n",
        "a < b, [c] (d) {e} \n ",
        '{"name": "Bob", "age": 3}',
        "[1, 2, 3]",
        "[note] see f(x=1)",
        "<tool <|tool <｜tool [TOOL functool",
        "1. `<b>`\n2. </b>",
    ):
        deltas = read_every_way(spec(writer), text)
        assert deltas == ([TextDelta(text)] if text else []), (writer, text)
