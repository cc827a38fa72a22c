from __future__ import annotations

import json

import pytest

from rtp_llm.text.chat_template import ChatTemplate
from rtp_llm.text.conversation import Message, Tool, ToolCall
from rtp_llm.text.parsers.cutting_for_tests import read
from rtp_llm.text.parsers.deltas import ToolArguments, ToolCallBegin
from rtp_llm.text.parsers.families_for_tests import FAMILIES, Family
from rtp_llm.text.parsers.registry import detect, reasoning_is_open
from rtp_llm.text.parsers.spec import ParserSpec
from rtp_llm.text.template_messages import template_messages, template_tools

TOOL = Tool("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})
ARGUMENTS = {"a": 1, "text": "x <think> y"}
ASKED = (Message("user", "What does <think> mean?"),)
CALLED = (*ASKED, Message("assistant", tool_calls=(ToolCall("1", "add", json.dumps(ARGUMENTS)),)))
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
    assert len(FAMILIES) >= 25


@pytest.mark.parametrize("name", FAMILIES)
def test_forms_are_found_and_explained(name: str) -> None:
    family = FAMILIES[name]
    found = detect(family.template, family.vocabulary)
    assert (found.tool_calls, found.reasoning) == (family.tool_calls, family.reasoning)
    for form in filter(None, (found.tool_calls, found.reasoning)):
        assert f"{form} (the " in found.why


@pytest.mark.parametrize("name", WITH_TEMPLATE)
def test_whether_a_prompt_ends_inside_of_reasoning(name: str) -> None:
    family = FAMILIES[name]
    if family.reasoning is None:
        assert family.open == (False, False)
        return
    on, off = (
        reasoning_is_open(render(family, ASKED, **given), family.reasoning)
        for given in ({}, {"enable_thinking": False})
    )
    assert (on, off) == family.open


def test_thinking_that_is_off_by_default() -> None:
    family = FAMILIES["DeepSeek-V3.1"]
    assert reasoning_is_open(render(family, ASKED, thinking=True), "deepseek_v3")


@pytest.mark.parametrize("name", WITH_TEMPLATE)
def test_the_form_that_is_found_reads_what_the_template_writes(name: str) -> None:
    family = FAMILIES[name]
    if family.tool_calls is None:
        return
    history = render(family, ASKED, prompt=False)
    written = render(family, CALLED, prompt=False).removeprefix(history)
    if family.tool_calls == "llama3_json":  # read at the beginning of an answer only
        written = written.partition("\n\n")[2]
    deltas = read(ParserSpec(tool_calls=family.tool_calls, tools=(TOOL,)), [written])
    names = [delta.name for delta in deltas if isinstance(delta, ToolCallBegin)]
    arguments = "".join(delta.text for delta in deltas if isinstance(delta, ToolArguments))
    assert names == ["add"]
    assert json.loads(arguments) == ARGUMENTS


def test_marks_of_the_template_outweigh_the_vocabulary() -> None:
    tokens = {"[TOOL_CALLS]", "<|python_tag|>"}
    assert detect('<tool_call>{"name": N, "arguments": A}', tokens).tool_calls == "hermes"
    assert detect("{{ messages }}", tokens).tool_calls == "mistral"
    assert detect("{{ messages }}", set()).tool_calls is None


def test_the_reason_names_the_marks() -> None:
    assert detect("<think></think> {{ enable_thinking }} <tool_call> arguments", ()).why == (
        "tool calls: hermes (the chat template has <tool_call> and arguments); "
        "reasoning: qwen3 (the chat template has <think> and enable_thinking)"
    )
    assert detect("", ()).why == (
        "tool calls: none (neither the chat template nor the vocabulary has the marks of one); "
        "reasoning: none (neither the chat template nor the vocabulary has the marks of one)"
    )
