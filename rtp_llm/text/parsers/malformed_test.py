# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from rtp_llm.testing.text.cutting import read_every_way
from rtp_llm.testing.text.writing import TOOLS
from rtp_llm.text.parsers.deltas import (
    OutputDelta,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolCallBegin,
)
from rtp_llm.text.parsers.spec import ParserSpec

CALLS_BEGIN, CALL_BEGIN = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"
KIMI_BEGIN = "<|tool_calls_section_begin|><|tool_call_begin|>"
KIMI_ARGUMENTS = "<|tool_call_argument_begin|>"


def call(index: int, name: str, arguments: str, id: str = "") -> list[OutputDelta]:
    return [ToolCallBegin(index, name, id), ToolArguments(index, arguments)]


def now(arguments: str = "{}") -> list[OutputDelta]:
    return call(0, "now", arguments)


TEXT = "all of it is text"
CASES: list[tuple[str, str, list[OutputDelta] | str]] = [
    # No calls after all.
    ("hermes", "<tool_call>\nnow\n</tool_call>", TEXT),
    ("hermes", '<tool_call>{"name": 1, "arguments": {}}</tool_call>', TEXT),
    ("hermes", '<tool_call>{"arguments": {}}</tool_call>', TEXT),
    ("hermes", '<tool_call>{"name": "now", "arguments": "{}"}</tool_call>', TEXT),
    ("hermes", '<tool_call>{"name": "now"', TEXT),
    ("hermes", '<tool_call>{"name": "\\ud800"}</tool_call>', TEXT),
    ("qwen3_coder", "<tool_call>\n<parameter=a>\n1\n</parameter>\n</tool_call>", TEXT),
    ("qwen3_coder", "write <function=f> like this", TEXT),
    ("qwen3_coder", "<function=>\n</function>", TEXT),
    ("llama3_json", '{"name": "now"}', TEXT),
    ("llama3_json", '{"name": "unknown", "parameters": {}}', TEXT),
    ("llama3_json", '[{"name": "now", "parameters": {}}]', TEXT),
    ("llama3_json", "<|python_tag|>print(1)", TEXT),
    ("pythonic", "[unknown(a=1)]", TEXT),
    ("pythonic", "[now(1)]", TEXT),
    ("pythonic", "[now(a=open('x'))]", TEXT),
    ("pythonic", "[1, 2]", TEXT),
    ("pythonic", "See [now()].", TEXT),
    ("mistral", "[TOOL_CALLS]", TEXT),
    ("mistral", "[TOOL_CALLS]two words[ARGS]{}", TEXT),
    ("mistral", "[TOOL_CALLS]now[ARGS]1", TEXT),
    ("deepseek_v3", f"{CALLS_BEGIN}{CALL_BEGIN}function\nnow", TEXT),
    ("deepseek_v31", f"{CALLS_BEGIN}now", TEXT),
    ("glm45", "<tool_call> is a tag\n", TEXT),
    ("kimi_k2", f"{KIMI_BEGIN}functions.now:0 {{}}", TEXT),
    ("deepseek_v32", '<｜DSML｜function_calls>\n<｜DSML｜invoke name="">', TEXT),
    ("functionary_v31", "<function=now>1</function>", TEXT),
    ("functionary_v31", "<function=>{}</function>", TEXT),
    ("gemma4", "<|tool_call>now{}<tool_call|>", TEXT),
    ("gigachat3", "function call<|role_sep|>\n[]", TEXT),
    ("cohere_command3", '<|START_ACTION|>[{"name": "now"}]<|END_ACTION|>', TEXT),
    ("command_r", "Action: I will look. ```json", TEXT),
    ("hy_v3", "<tool_calls><tool_call>now</tool_call></tool_calls>", TEXT),
    ("minimax_m3", "]<]minimax[>[<tool_call>now]<]minimax[>[</tool_call>", TEXT),
    ("minimax_m3", ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="now">x', TEXT),
    # What was sent stays, the rest is text.
    (
        "gemma4",
        "<|tool_call>call:now{a:1,b:[1}<tool_call|>",
        [*now('{"a": 1, "b": [1'), TextDelta("}<tool_call|>")],
    ),
    (
        "minimax_m3",
        ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="now">]<]minimax[>[<a>1'
        "]<]minimax[>[</b>",
        [ToolCallBegin(0, "now"), TextDelta("1]<]minimax[>[</b>")],
    ),
    (
        "hermes",
        '<tool_call>{"name": "now", "arguments": {"a": 1]}}</tool_call>',
        [*now('{"a": 1'), TextDelta("]}}</tool_call>")],
    ),
    (
        "hermes",
        '<tool_call>{"name": "now", "arguments": {}} and so on</tool_call>',
        [*now(), TextDelta(" and so on</tool_call>")],
    ),
    (
        "qwen3_coder",
        "<function=now>\n<parameter=a>\n1\n</parameter>\nand so on",
        [*now('{"a": 1'), TextDelta("\nand so on")],
    ),
    ("pythonic", "[now(a=1, 2)]", [*now('{"a": 1'), TextDelta(", 2)]")]),
    (
        "glm47",
        "<tool_call>now<arg_key>a</arg_key>1",
        [ToolCallBegin(0, "now"), TextDelta("a</arg_key>1")],
    ),
    # Errors that models make, and that are understood.
    (
        "hermes",
        '<tool_call>{"name": "now", "arguments": {}}\n<tool_call>',
        [*now(), TextDelta("\n<tool_call>")],
    ),
    ("hermes", '<tool_call>\n{"name": "now", "arguments": {"a": 1}\n</tool_call>', now('{"a": 1}')),
    ("hermes", '<tool_call>[{"name": "now", "parameters": {}}]</tool_call>', now()),
    ("qwen3_coder", "<function=now>\n</function>\n</tool_call>", now()),
    ("mistral", '[TOOL_CALLS]now{"a": 1}', now('{"a": 1}')),
    ("mistral", "[TOOL_CALLS]now[CALL_ID]abc[ARGS]{}", call(0, "now", "{}", "abc")),
    ("kimi_k2", f"{KIMI_BEGIN}now{KIMI_ARGUMENTS}{{}}<|tool_call_end|>", now()),
    ("gemma4", '<|tool_call>call: now { a : 1 , <|"|>b<|"|>: None }', now('{"a": 1, "b": null}')),
    (
        "minimax_m3",
        ']<]minimax[>[<tool_call>\n]<]minimax[>[ <invoke name="now">',
        TEXT,
    ),
    (
        "minimax_m3",
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="now">]<]minimax[>[<a>\n'
        "]<]minimax[>[<t>x]<]minimax[>[</t>]<]minimax[>[<t>2]<]minimax[>[</t>]<]minimax[>[</a>"
        "]<]minimax[>[</invoke>",
        now('{"a": {"t": ["x", 2]}}'),
    ),
    # Cut within the arguments.
    ("gemma4", '<|tool_call>call:now{a:<|"|>Par', now('{"a": "Par')),
    (
        "qwen3_coder",
        "<function=weather>\n<parameter=city>\nPar",
        call(0, "weather", '{"city": "Par'),
    ),
    ("qwen3_coder", "<function=weather>\n<parameter=days>\n12", call(0, "weather", '{"days": 12')),
    ("glm45", "<tool_call>weather\n<arg_key>ci", [ToolCallBegin(0, "weather")]),
    ("mistral", '[TOOL_CALLS]now[ARGS]{"a": "b', now('{"a": "b')),
    # Names that no tool has are calls where the form says so.
    (
        "hermes",
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        call(0, "unknown", "{}"),
    ),
    (
        "llama3_json",
        '<|python_tag|>{"name": "unknown", "parameters": {}}',
        call(0, "unknown", "{}"),
    ),
    ("llama4_pythonic", "<|python_start|>[unknown()]<|python_end|>", call(0, "unknown", "{}")),
    (
        "glm47",
        "<tool_call>unknown<arg_key>a</arg_key><arg_value>[1]</arg_value></tool_call>",
        call(0, "unknown", '{"a": [1]}'),
    ),
]


@pytest.mark.parametrize(("form", "text", "expected"), CASES)
def test_outputs_that_are_not_quite_of_the_form(
    form: str, text: str, expected: list[OutputDelta] | str
) -> None:
    deltas = read_every_way(ParserSpec(form, tools=TOOLS), text)
    assert deltas == ([TextDelta(text)] if expected is TEXT else expected)


HARMONY = ParserSpec("openai", "openai_gptoss", tools=TOOLS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>"
            "Hello.<|return|>",
            [ReasoningDelta("hm"), TextDelta("Hello.")],
        ),
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant to=functions.now<|channel|>"
            "commentary <|constrain|>json<|message|><|call|>",
            [ReasoningDelta("hm"), *now()],
        ),
        (
            "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary"
            ' to=weather json<|message|>{"city": "a"}<|call|>',
            [TextDelta("I look."), *call(0, "weather", '{"city": "a"}')],
        ),
        # A tool of the model's own thinking.
        ("<|channel|>analysis to=python code<|message|>1+1<|call|>", [ReasoningDelta("1+1")]),
        # A budget ended the thinking.
        (
            "<|channel|>analysis<|message|>hm<|channel|>final<|message|>Hello.",
            [ReasoningDelta("hm"), TextDelta("Hello.")],
        ),
        ("Hello.<|return|>", [TextDelta("Hello.")]),
        ("<|channel|>analysis", []),
        ("<|channel|>analysis<|message|>h", [ReasoningDelta("h")]),
        ('<|channel|>commentary to=functions.now<|message|>{"a', now('{"a')),
    ],
)
def test_messages_on_channels(text: str, expected: list[OutputDelta]) -> None:
    assert read_every_way(HARMONY, text) == expected


def test_channels_that_the_prompt_began_or_that_nobody_asked_for() -> None:
    opened = ParserSpec("openai", "openai_gptoss", True, TOOLS)
    text = "hm<|end|><|start|>assistant<|channel|>final<|message|>Hello."
    assert read_every_way(opened, text) == [ReasoningDelta("hm"), TextDelta("Hello.")]
    without_tools = ParserSpec(None, "openai_gptoss")
    call = "<|channel|>commentary to=functions.now<|message|>{}<|call|>"
    assert read_every_way(without_tools, call) == [TextDelta("{}")]
