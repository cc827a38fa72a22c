# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rtp_llm.testing.text.cutting import cut, read
from rtp_llm.testing.text.writing import TOOLS, WRITERS
from rtp_llm.text.parsers.answer import MESSAGE_ENDS
from rtp_llm.text.parsers.deltas import OutputDelta, TextDelta, ToolArguments, ToolCallBegin
from rtp_llm.text.parsers.formats import CALLS, REASONING
from rtp_llm.text.parsers.registry import make_parser
from rtp_llm.text.parsers.source import HELD_CHARACTERS
from rtp_llm.text.parsers.spec import ParserSpec

unhurried = settings(
    deadline=None,
    max_examples=12,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
CHUNKS = (
    *("{", "}", "[", "]", "(", ")", '"', "'", "\\", ",", ":", ";", "=", ">", "<", "\n", " ", "|"),
    *('{"name": "now", ', '"arguments": {', '"parameters": {}', '"name"', '"now"', "null", "1"),
    *("now", "weather", "city=", "now()", 'weather(city="a", ', "functions.now:0", "word"),
    *("```json\n", "```", "<think>", "</think>", "é", "\U0001f600"),
)
HEADERS = tuple(
    f"<|channel|>{channel}<|message|>"
    for channel in ("analysis", "final", "commentary", "commentary to=functions.now")
)


@cache
def chunks_of(form: str) -> tuple[str, ...]:
    """Markers of a form, their beginnings and ends, whole calls, and what all forms have."""
    calls = CALLS[form]
    markers = (*calls.markers, *("<function=", "<parameter=", "<arg_key>", "</tool_call>"))
    halves = (half for text in markers for half in (text[: len(text) // 2], text[len(text) // 2 :]))
    whole = (
        write([("weather", {"city": "x", "days": 2})])
        for writer, write in WRITERS.items()
        if writer.split(" ")[0] == form
    )
    cut_calls = (text[: len(text) * part // 4] for text in whole for part in range(1, 5))
    headers = HEADERS if form == "openai" else ()
    return (*markers, *halves, *cut_calls, *headers, *MESSAGE_ENDS[:3], *CHUNKS)


@pytest.mark.parametrize("reasoning", [None, "qwen3"])
@pytest.mark.parametrize("form", CALLS)
def test_any_text_is_read_the_same_however_it_is_cut(form: str, reasoning: str | None) -> None:
    @unhurried
    @given(st.data())
    def check(data: st.DataObject) -> None:
        text = "".join(data.draw(st.lists(st.sampled_from(chunks_of(form)), max_size=14)))
        is_open = reasoning is not None and data.draw(st.booleans())
        spec = ParserSpec(form, reasoning, is_open, TOOLS)
        whole = read(spec, [text])
        assert read(spec, text) == whole
        borders = data.draw(st.lists(st.integers(0, len(text)), max_size=5))
        assert read(spec, cut(text, borders)) == whole
        check_order(whole)
        if reasoning is None and form != "openai":
            check_nothing_is_lost(text, whole)

    check()


def check_order(deltas: Iterable[OutputDelta]) -> None:
    """Calls are numbered from 0, and arguments are those of the last."""
    index = -1
    for delta in deltas:
        if isinstance(delta, ToolCallBegin):
            index += 1
        if isinstance(delta, (ToolCallBegin, ToolArguments)):
            assert delta.index == index


def check_nothing_is_lost(text: str, deltas: list[OutputDelta]) -> None:
    """Without calls everything is there, with them at least what stood before the first."""
    shown = ""
    for delta in deltas:
        if not isinstance(delta, TextDelta):
            break
        shown += delta.text
    for end in (*MESSAGE_ENDS, "<|message_sep|>"):
        text = text.replace(end, "")
        shown = shown.replace(end, "")
    calls = any(isinstance(delta, ToolCallBegin) for delta in deltas)
    assert text.startswith(shown) if calls else shown == text


@pytest.mark.parametrize("form", [form for form in CALLS if form != "openai"])
@pytest.mark.parametrize("name", [name for name in REASONING if name != "openai_gptoss"])
def test_every_form_goes_with_every_reasoning(form: str, name: str) -> None:
    write = WRITERS[form]
    text = f"{REASONING[name].begin}hm{REASONING[name].end}{write([('now', {})])}"
    deltas = read(ParserSpec(form, name, False, TOOLS), text)
    assert deltas[-2:] == [ToolCallBegin(0, "now", call_id(form)), ToolArguments(0, "{}")]


def call_id(form: str) -> str:
    return "functions.now:0" if form == "kimi_k2" else ""


@pytest.mark.parametrize("form", ["hermes", "glm45", "qwen3_coder", "pythonic", "kimi_k2"])
def test_what_is_held_is_bounded(form: str) -> None:
    beginnings = {
        "hermes": '<tool_call>{"name": "',
        "glm45": "<tool_call>",
        "qwen3_coder": "<function=",
        "pythonic": '[now(a="',
        "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>",
    }
    text = beginnings[form] + "x" * (HELD_CHARACTERS + 100)
    spec = ParserSpec(form, tools=TOOLS)
    parser = make_parser(spec)
    assert sum(len(delta.text) for delta in parser.feed(text) if isinstance(delta, TextDelta)) > 0
    chunks = cut(text, [10, 5000, len(text) - 50])
    assert read(spec, chunks) == read(spec, [text]) == [TextDelta(text)]


def test_white_space_without_end_is_text() -> None:
    text = " " * (HELD_CHARACTERS + 100)
    for spec in ParserSpec("hermes"), ParserSpec("hermes", "qwen3"), ParserSpec("openai"):
        assert read(spec, [text]) == [TextDelta(text)]
