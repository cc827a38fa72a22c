# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from rtp_llm.testing.text.cutting import read_every_way
from rtp_llm.text.parsers.deltas import (
    OutputDelta,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolCallBegin,
)
from rtp_llm.text.parsers.registry import (
    REASONING_FORMS,
    TOOL_CALL_FORMS,
    make_parser,
    reasoning_is_open,
    special_texts,
    thinking_tags,
)
from rtp_llm.text.parsers.spec import ParserSpec


def call(index: int, name: str, arguments: str) -> list[OutputDelta]:
    return [ToolCallBegin(index, name), ToolArguments(index, arguments)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '<think>\nhm\n</think>\n\nLet me.\n<tool_call>\n{"name": "f", "arguments": '
            '{"a": "x\\"}", "b": [1, {}]}}\n</tool_call>\n<tool_call>\n{"arguments": {"z":1}, '
            '"name": "g"}\n</tool_call><|im_end|>',
            [
                ReasoningDelta("\nhm\n"),
                TextDelta("\n\nLet me.\n"),
                *call(0, "f", '{"a": "x\\"}", "b": [1, {}]}'),
                *call(1, "g", '{"z":1}'),
            ],
        ),
        ("<think>\n\n</think>\n\nHello", [TextDelta("\n\nHello")]),
        ("Hello <think> all", [TextDelta("Hello <think> all")]),
        ("<think>so long", [ReasoningDelta("so long")]),
        (" \n", [TextDelta(" \n")]),
        ("", []),
    ],
)
def test_reasoning_then_text_then_calls(text: str, expected: list[OutputDelta]) -> None:
    assert read_every_way(ParserSpec(tool_calls="hermes", reasoning="qwen3"), text) == expected


def test_reasoning_that_the_prompt_opened() -> None:
    spec = ParserSpec(tool_calls="hermes", reasoning="qwen3", reasoning_open=True)
    assert read_every_way(spec, "hm</think>Hi") == [ReasoningDelta("hm"), TextDelta("Hi")]
    assert read_every_way(spec, "<think>hm</think>Hi") == [ReasoningDelta("hm"), TextDelta("Hi")]
    forgot = 'hm\n<tool_call>\n{"name": "f"}</tool_call>'
    assert read_every_way(spec, forgot) == [ReasoningDelta("hm"), *call(0, "f", "{}")]
    mentioned = "hm\n<tool_call>\nis a tag</think>"
    assert read_every_way(spec, mentioned) == [ReasoningDelta("hm\n<tool_call>\nis a tag")]


GEMMA_CALL = '<|tool_call>call:f{a:<|"|>x<|"|>}<tool_call|>'
COHERE_CALL = '<|START_ACTION|>[{"tool_name": "f", "parameters": {"a": "x"}}]<|END_ACTION|>'
X = '{"a": "x"}'


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        (
            "gemma4",
            "<|channel>thought\nhm\n<channel|>Hi",
            [ReasoningDelta("hm\n"), TextDelta("Hi")],
        ),
        ("gemma4", "<|channel>thought\n<channel|>Hi<turn|>", [TextDelta("Hi")]),
        ("gemma4", f"<|channel>thought\nhm{GEMMA_CALL}", [ReasoningDelta("hm"), *call(0, "f", X)]),
        (
            "gemma4",
            f"<|channel>thought\nhm<channel|>{GEMMA_CALL}",
            [ReasoningDelta("hm"), *call(0, "f", X)],
        ),
        (
            "minimax_m3",
            "<mm:think>a <think></mm:think>Hi",
            [ReasoningDelta("a <think>"), TextDelta("Hi")],
        ),
        ("minimax_m3", "</mm:think>Hi</mm:think>", [TextDelta("Hi</mm:think>")]),
        ("minimax_m3", "Hi", [TextDelta("Hi")]),
        (
            "cohere_command3",
            "<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>Hi<|END_RESPONSE|>",
            [ReasoningDelta("hm"), TextDelta("Hi")],
        ),
        ("cohere_command3", "<|START_RESPONSE|>Hi<|END_RESPONSE|>", [TextDelta("Hi")]),
        (
            "cohere_command3",
            f"<|START_THINKING|>hm<|END_THINKING|>{COHERE_CALL}",
            [ReasoningDelta("hm"), *call(0, "f", X)],
        ),
        (
            "cohere_command3",
            "<|START_THINKING|>hm<|START_RESPONSE|>Hi",
            [ReasoningDelta("hm"), TextDelta("Hi")],
        ),
    ],
)
def test_reasoning_between_other_tags(form: str, text: str, expected: list[OutputDelta]) -> None:
    assert read_every_way(ParserSpec(tool_calls=form, reasoning=form), text) == expected


def test_a_plain_answer_is_passed_on_as_it_is() -> None:
    text = "<think>a</think><tool_call><|im_end|>"
    assert read_every_way(ParserSpec(), text) == [TextDelta(text)]


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [
        ("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>\nso far", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>user\nWhat is <think>?<|im_end|>\n<|im_start|>assistant\n", False),
        ("[INST]What is <think>?[/INST]", False),
        ("", False),
    ],
)
def test_reasoning_is_open_in_the_last_turn_only(prompt: str, is_open: bool) -> None:
    assert reasoning_is_open(prompt, "qwen3") is is_open


def test_every_name_makes_a_parser() -> None:
    for form in TOOL_CALL_FORMS:
        assert make_parser(ParserSpec(tool_calls=form)).feed("Hi") == [TextDelta("Hi")]
    for form in REASONING_FORMS:
        assert thinking_tags(form)[1] in special_texts(ParserSpec(reasoning=form))
        assert make_parser(ParserSpec(reasoning=form)).feed("Hi") == [TextDelta("Hi")]
    with pytest.raises(KeyError):
        make_parser(ParserSpec(tool_calls="none such"))


def test_tokens_that_a_parser_has_to_see() -> None:
    assert "｜DSML｜" in special_texts(ParserSpec("deepseek_v32"))
    assert {"<|action_start|>", "<|plugin|>"} <= special_texts(ParserSpec("internlm"))
    assert special_texts(ParserSpec("hermes", "mistral")) == {
        "<tool_call>",
        "</tool_call>",
        "[THINK]",
        "[/THINK]",
    }
    assert {"<|channel>", "<channel|>"} <= special_texts(ParserSpec(reasoning="gemma4"))
    assert special_texts(ParserSpec()) == frozenset()
