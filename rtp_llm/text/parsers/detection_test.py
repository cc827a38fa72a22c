# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from typing import Any

import pytest

from rtp_llm.testing.text.cutting import read
from rtp_llm.testing.text.families import Family
from rtp_llm.testing.text.more_families import ALL_FAMILIES as FAMILIES
from rtp_llm.text.chat_template import ChatTemplate
from rtp_llm.text.conversation import Message, Tool, ToolCall
from rtp_llm.text.parsers.deltas import ToolArguments, ToolCallBegin
from rtp_llm.text.parsers.read_back import answers
from rtp_llm.text.parsers.registry import detect, reasoning_is_open
from rtp_llm.text.parsers.spec import ParserSpec
from rtp_llm.text.template_messages import template_messages, template_tools

TOOL = Tool("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})
QUESTION = (Message("user", "What does <think> mean?"),)
WITH_TEMPLATE = [name for name, family in FAMILIES.items() if family.template]


def render(
    family: Family, messages: tuple[Message, ...], *, prompt: bool = True, **variables: object
) -> str:
    return ChatTemplate(family.template, {}).render(
        template_messages(messages),
        add_generation_prompt=prompt,
        tools=template_tools([TOOL]),
        **variables,
    )


def test_there_are_enough_families() -> None:
    assert len({name for name in WITH_TEMPLATE if FAMILIES[name].tool_calls}) >= 40


@pytest.mark.parametrize("name", FAMILIES)
def test_forms_are_found_and_explained(name: str) -> None:
    family = FAMILIES[name]
    found = detect(family.template, family.vocabulary)
    assert (found.tool_calls, found.reasoning) == (family.tool_calls, family.reasoning)
    for form in filter(None, (found.tool_calls, found.reasoning)):
        assert f"{form} (" in found.why


@pytest.mark.parametrize("name", WITH_TEMPLATE)
def test_whether_a_prompt_ends_inside_of_reasoning(name: str) -> None:
    family = FAMILIES[name]
    if family.reasoning is None:
        assert family.open == (False, False)
        return
    on, off = (
        reasoning_is_open(render(family, QUESTION, **given), family.reasoning)
        for given in ({}, {"enable_thinking": False})
    )
    assert (on, off) == family.open


def test_thinking_that_is_off_by_default() -> None:
    family = FAMILIES["DeepSeek-V3.1"]
    assert reasoning_is_open(render(family, QUESTION, thinking=True), "deepseek_v3")


ARGUMENTS: tuple[dict[str, Any], ...] = (
    {},
    {"a": 1},
    {"text": "x <think> y"},
    {"a": -12, "ratio": 0.5, "exact": True},
    {"exact": False, "text": "", "note": None},
    {"tags": ["a", "b, c", "[d]"]},
    {"tags": [], "where": {"x": {"y": [1, 2.5, "}"]}}},
    {"text": 'say "hi"\\ \t {b}'},
    {"text": "é\U0001f600 \u4f60"},
    {"text": "two\nlines\n  and more"},
    {"text": "it's <b> [x] (y)"},
    {"text": "12", "note": "null, and more"},
)
CALLED: tuple[tuple[tuple[str, dict[str, Any]], ...], ...] = (
    *((("add", arguments),) for arguments in ARGUMENTS),
    (("add", {"a": 1}), ("add", {"a": 2})),
    (("now", {}), ("add", {"a": 1, "text": "x"}), ("now", {})),
    (("add", {"where": {"deep": {"er": ["x"]}}}), ("now", {})),
)
TOOLS = (
    Tool(
        "add",
        "Adds.",
        {
            "type": "object",
            "properties": {
                "a": {"type": "integer"},
                "ratio": {"type": "number"},
                "exact": {"type": "boolean"},
                "text": {"type": "string"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "where": {"type": "object"},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            },
        },
    ),
    Tool("now", "The time.", {"type": "object", "properties": {}}),
)


def calls_in(form: str, text: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, str]] = []
    for delta in read(ParserSpec(tool_calls=form, tools=TOOLS), [text]):
        if isinstance(delta, ToolCallBegin):
            found.append((delta.name, ""))
        if isinstance(delta, ToolArguments):
            found[-1] = (found[-1][0], found[-1][1] + delta.text)
    return [(name, json.loads(arguments)) for name, arguments in found]


@pytest.mark.parametrize("content", [None, "I look."])
@pytest.mark.parametrize("name", [name for name in WITH_TEMPLATE if FAMILIES[name].tool_calls])
def test_the_form_that_is_found_reads_what_the_template_writes(
    name: str, content: str | None
) -> None:
    family = FAMILIES[name]
    form = detect(family.template, family.vocabulary).tool_calls
    assert form is not None
    if content and form in ("llama3_json", "pythonic"):  # read at the beginning of an answer only
        return
    template = ChatTemplate(family.template, {})
    assert len(CALLED) == 15
    for calls in CALLED:
        several = template.call_style.several
        for part in [calls] if several else [(call,) for call in calls]:
            made = tuple(
                ToolCall(f"call_{index}", name, json.dumps(arguments))
                for index, (name, arguments) in enumerate(part)
            )
            texts = answers(template, Message("assistant", content, None, made), TOOLS)
            assert list(part) in [calls_in(form, text) for text in texts], texts


def test_marks_of_the_template_outweigh_the_vocabulary() -> None:
    tokens = {"[TOOL_CALLS]", "<|python_tag|>"}
    assert detect('<tool_call>{"name": N, "arguments": A}', tokens).tool_calls == "hermes"
    plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert detect(plain, tokens).tool_calls == "mistral"
    assert detect(plain, set()).tool_calls is None


def test_the_reason_names_the_marks() -> None:
    assert detect("<think></think> {{ enable_thinking }} <tool_call> arguments", ()).why == (
        "tool calls: hermes (the chat template has <tool_call> and arguments); "
        "reasoning: qwen3 (the chat template has <think> and enable_thinking)"
    )
    assert detect("", ()).why == (
        "tool calls: none (neither the chat template nor the vocabulary has the marks of one); "
        "reasoning: none (neither the chat template nor the vocabulary has the marks of one)"
    )
