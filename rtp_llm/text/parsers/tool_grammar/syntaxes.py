# SPDX-License-Identifier: Apache-2.0
"""How each form writes calls, for grammars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rtp_llm.request.constraints import Grammar
from rtp_llm.text.conversation import Tool, ToolChoice
from rtp_llm.text.grammar.lark import either_grammar, lark_grammar
from rtp_llm.text.parsers.calls import gemma
from rtp_llm.text.parsers.calls.glm import KeyValueCall
from rtp_llm.text.parsers.calls.namespaced_xml import SPACE
from rtp_llm.text.parsers.formats import CALL_ALIASES
from rtp_llm.text.parsers.tool_grammar.arguments import Tagged, python_call
from rtp_llm.text.parsers.tool_grammar.harmony import HarmonySyntax
from rtp_llm.text.parsers.tool_grammar.nested import GemmaValues, NestedCall, XmlValues
from rtp_llm.text.parsers.tool_grammar.terms import (
    Syntax,
    Texts,
    enforced,
    json_arguments,
    json_call,
    named_json,
    quoted,
)


def _tagged_json(open: str, close: str) -> Syntax:
    return Syntax(json_call("arguments", "\n", f"\n{close}"), open, between=f"\n{open}")


def _array(trigger: str, close: str = "") -> Syntax:
    return Syntax(json_call("arguments"), trigger, open="[", between=", ", close=f"]{close}")


def _functions(open: str, close: str, line: str) -> Syntax:
    arguments = Tagged(
        before=">\n",
        head=lambda key, text: f"<parameter={key}>{line}",
        end=f"{line}</parameter>",
        after="\n",
        close="</function>",
    )
    return Syntax(
        arguments,
        trigger="<function=",
        lead=f"{open}\n",
        between=f"\n{close}\n{open}\n<function=",
        close=f"\n{close}",
        string_end=arguments.end,
    )


def _invokes(mark: str, section: str, key_end: Mapping[bool, str]) -> Syntax:
    arguments = Tagged(
        before='">\n',
        head=lambda key, text: f'<{mark}parameter name="{key}{key_end[text]}',
        end=f"</{mark}parameter>",
        after="\n",
        close=f"</{mark}invoke>",
        typed=key_end[True] != key_end[False],
    )
    begin = f'\n<{mark}invoke name="'
    return Syntax(
        arguments,
        trigger=f"<{section}>",
        open=begin,
        between=begin,
        close=f"\n</{section}>",
        string_end=arguments.end,
    )


def _key_values(line: str, tags: KeyValueCall) -> Tagged:
    tag = tags.tag
    return Tagged(
        before=f"{tag('tool_sep') if tags.separator else ''}{line}",
        head=lambda key, text: f"{tag('arg_key')}{key}{tag('/arg_key')}{line}{tag('arg_value')}",
        end=tag("/arg_value"),
        after=line,
        close=tag("/tool_call"),
    )


def _glm(line: str) -> Syntax:
    arguments = _key_values(line, KeyValueCall())
    return Syntax(arguments, "<tool_call>", between=f"{line}<tool_call>", string_end=arguments.end)


def _hy(suffix: str) -> Syntax:
    tags = KeyValueCall(suffix, separator=True)
    arguments = _key_values("\n", tags)
    begin = f"\n{tags.tag('tool_call')}"
    return Syntax(
        arguments,
        tags.tag("tool_calls"),
        open=begin,
        between=begin,
        close=f"\n{tags.tag('/tool_calls')}",
        string_end=arguments.end,
    )


def _cohere(tool: Tool, texts: Texts) -> str:
    """Command R7B and A number their calls."""
    head = f'", "tool_name": {quoted(tool.name)}, "parameters": '
    begin = texts('    {"tool_call_id": "')
    return f"{begin} /[0-9]{{1,3}}/ {texts(head)} {json_arguments(tool)} {texts('}')}"


def _command_r(tool: Tool, texts: Texts) -> str:
    head = f'    {{\n        "tool_name": {quoted(tool.name)},\n        "parameters": '
    return f"{texts(head)} {json_arguments(tool)} {texts(chr(10) + '    }')}"


def _minimax_m3() -> Syntax:
    begin = f'\n{SPACE}<invoke name="'
    return Syntax(
        NestedCall(XmlValues(), head='">', close="</invoke>"),
        trigger=f"{SPACE}<tool_call>",
        open=begin,
        between=begin,
        close=f"\n{SPACE}</tool_call>",
        string_end=SPACE,
    )


def _gemma4() -> Syntax:
    values = GemmaValues()
    return Syntax(
        NestedCall(values, head="", close=gemma.CLOSE),
        trigger=gemma.OPEN,
        open="call:",
        between=f"{gemma.OPEN}call:",
        string_end=gemma.QUOTE,
        rules=values.rules,
    )


def _deepseek(before: str, head: str, after: str, line: str) -> Syntax:
    begin, end = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
    return Syntax(
        named_json(head, f"{after}{end}"),
        "<｜tool▁calls▁begin｜>",
        open=f"{begin}{before}",
        between=f"{line}{begin}{before}",
        close="<｜tool▁calls▁end｜>",
    )


_STRING = {True: '" string="true">', False: '" string="false">'}
_GIGACHAT = "<|message_sep|>\n\nfunction call<|role_sep|>\n"
# Of forms that a family writes in two ways: the one of tokenizers with this special token.
_NEWER: dict[str, tuple[str, Syntax]] = {
    "mistral": (
        "[ARGS]",
        Syntax(named_json("[ARGS]", ""), "[TOOL_CALLS]", between="[TOOL_CALLS]"),
    ),
    "gigachat3": (
        "<|function_call|>",
        Syntax(json_call("arguments"), "<|function_call|>", between="<|function_call|>"),
    ),
    "hy_v3": ("<tool_calls:opensource>", _hy(":opensource")),
}
_HARMONY = HarmonySyntax()
_SYNTAXES: dict[str, Syntax | HarmonySyntax] = {
    "hermes": _tagged_json("<tool_call>", "</tool_call>"),
    "qwen3_coder": _functions("<tool_call>", "</tool_call>", "\n"),
    "llama3_json": Syntax(json_call("parameters"), between="; ", first="{"),
    "llama4_json": Syntax(
        json_call("parameters"), "<|python_start|>", between="; ", close="<|python_end|>", first="{"
    ),
    "pythonic": Syntax(python_call, open="[", between=", ", close="]", first="["),
    "llama4_pythonic": Syntax(
        python_call, "<|python_start|>", "", "[", ", ", "]<|python_end|>", first="["
    ),
    "olmo3": Syntax(
        python_call, "<function_calls>", open="\n", between="\n", close="\n</function_calls>"
    ),
    "mistral": _array("[TOOL_CALLS]"),
    "deepseek_v3": _deepseek("function<｜tool▁sep｜>", "\n```json\n", "\n```", "\n"),
    "deepseek_v31": _deepseek("", "<｜tool▁sep｜>", "", ""),
    "deepseek_v32": _invokes("｜DSML｜", "｜DSML｜function_calls", _STRING),
    "deepseek_v4": _invokes("｜DSML｜", "｜DSML｜tool_calls", _STRING),
    "glm45": _glm("\n"),
    "glm47": _glm(""),
    "kimi_k2": Syntax(
        named_json("<|tool_call_argument_begin|>", "<|tool_call_end|>", index=True),
        "<|tool_calls_section_begin|>",
        open="<|tool_call_begin|>functions.",
        between="<|tool_call_begin|>functions.",
        close="<|tool_calls_section_end|>",
    ),
    "openai": _HARMONY,
    "minimax_m2": _invokes("", "minimax:tool_call", {True: '">', False: '">'}),
    "seed_oss": _functions("<seed:tool_call>", "</seed:tool_call>", ""),
    "minimax": Syntax(
        json_call("arguments"), "<tool_calls>", "", "\n", "\n", close="\n</tool_calls>"
    ),
    "hunyuan_a13b": _array("<tool_calls>", "</tool_calls>"),
    "jamba": _array("<tool_calls>", "</tool_calls>"),
    "longcat": _tagged_json("<longcat_tool_call>", "</longcat_tool_call>"),
    "granite": _array("<|tool_call|>"),
    "internlm": Syntax(
        json_call("parameters", after="<|action_end|>"),
        "<|action_start|><|plugin|>",
        between="<|action_start|><|plugin|>",
    ),
    "phi4_mini_json": _array("functools"),
    "phi4_mini": _array("<|tool_call|>", "<|/tool_call|>"),
    "nemotron_json": _array("<TOOLCALL>", "</TOOLCALL>"),
    "lfm2": Syntax(
        python_call, "<|tool_call_start|>", "", "[", ", ", "]<|tool_call_end|>", first="["
    ),
    "functionary_v31": Syntax(named_json(">", "</function>"), "<function=", between="<function="),
    "gemma4": _gemma4(),
    "gigachat3": Syntax(json_call("arguments"), _GIGACHAT, between=_GIGACHAT),
    "cohere_command3": Syntax(
        _cohere, "<|START_ACTION|>", open="[\n", between=",\n", close="\n]<|END_ACTION|>"
    ),
    "command_r": Syntax(_command_r, "Action:", open=" ```json\n[\n", between=",\n", close="\n]```"),
    "hy_v3": _hy(""),
    "minimax_m3": _minimax_m3(),
}


def tool_grammar(
    form: str, tools: Sequence[Tool], choice: ToolChoice, special_ids: Mapping[str, int]
) -> Grammar | None:
    """Return the grammar that enforces calls of `tools`; see rtp_llm.text.parsers.registry."""
    if not (called := enforced(tools, choice)):
        return None
    name = CALL_ALIASES.get(form, form)
    syntax = _SYNTAXES[name]
    if name in _NEWER and _NEWER[name][0] in special_ids:
        syntax = _NEWER[name][1]
    return lark_grammar(syntax.lark(called, choice, Texts(special_ids)))


def call_or_answer(
    form: str, calls: Grammar, answer: Grammar, special_ids: Mapping[str, int]
) -> Grammar:
    """Return the grammar of calls or an answer; see rtp_llm.text.parsers.registry."""
    on_channels = CALL_ALIASES.get(form, form) == "openai"
    before = _HARMONY.answer(Texts(special_ids)) if on_channels else ""
    return either_grammar(calls, answer, before)
