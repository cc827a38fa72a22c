# SPDX-License-Identifier: Apache-2.0
"""Calls as each family writes them, by code of its own: what templates and models were told."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from rtp_llm.text.conversation import Tool

Call: TypeAlias = tuple[str, Mapping[str, Any]]
Writer: TypeAlias = Callable[[Sequence[Call]], str]

TOOLS = (
    Tool(
        "weather",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "ratio": {"type": "number"},
                "metric": {"type": "boolean"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "where": {"type": "object"},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            },
        },
    ),
    Tool("now"),
    Tool("ns.run-it", parameters={"type": "object", "properties": {"code": {"type": "string"}}}),
)


def dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def raw(value: object) -> str:
    """A value of a tag: strings as they are."""
    return value if isinstance(value, str) else dumps(value)


def json_object(call: Call, key: str = "arguments") -> str:
    return f'{{"name": {dumps(call[0])}, "{key}": {dumps(call[1])}}}'


def in_tags(open: str, close: str) -> Writer:
    return lambda calls: "\n".join(f"{open}\n{json_object(call)}\n{close}" for call in calls)


def array(open: str, close: str = "") -> Writer:
    return lambda calls: f"{open}[{', '.join(map(json_object, calls))}]{close}"


def xml(
    open: str, close: str, call: str, parameter: str, ends: tuple[str, str], line: str
) -> Writer:
    def write_one(one: Call) -> str:
        name, arguments = one
        text = call % name + "\n"
        for key, value in arguments.items():
            head = parameter % key
            if "%s" in head:
                head %= "true" if isinstance(value, str) else "false"
            text += f"{head}{line}{raw(value)}{line}{ends[0]}\n"
        return text + ends[1]

    return lambda calls: f"{open}\n" + "\n".join(map(write_one, calls)) + f"\n{close}"


def each(writer: Writer) -> Writer:
    return lambda calls: "\n".join(writer([call]) for call in calls)


def glm(line: str) -> Writer:
    def write_one(call: Call) -> str:
        pairs = (
            f"{line}<arg_key>{key}</arg_key>{line}<arg_value>{raw(value)}</arg_value>"
            for key, value in call[1].items()
        )
        return f"<tool_call>{call[0]}{''.join(pairs)}{line}</tool_call>"

    return lambda calls: line.join(map(write_one, calls))


def llama(calls: Sequence[Call]) -> str:
    return "; ".join(json_object(call, "parameters") for call in calls)


def python_call(call: Call) -> str:
    def spelled(value: object) -> str:
        return repr(value) if isinstance(value, bool) else dumps(value)

    return f"{call[0]}({', '.join(f'{key}={spelled(value)}' for key, value in call[1].items())})"


def pythonic(calls: Sequence[Call]) -> str:
    return f"[{', '.join(map(python_call, calls))}]"


def olmo(calls: Sequence[Call]) -> str:
    return "<function_calls>\n" + "\n".join(map(python_call, calls)) + "\n</function_calls>"


def mistral(calls: Sequence[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{dumps(arguments)}" for name, arguments in calls)


def deepseek_v3(calls: Sequence[Call]) -> str:
    return (
        "<｜tool▁calls▁begin｜>"
        + "\n".join(
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{dumps(arguments)}\n```"
            "<｜tool▁call▁end｜>"
            for name, arguments in calls
        )
        + "<｜tool▁calls▁end｜>"
    )


def deepseek_v31(calls: Sequence[Call]) -> str:
    return (
        "<｜tool▁calls▁begin｜>"
        + "".join(
            f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{dumps(arguments)}<｜tool▁call▁end｜>"
            for name, arguments in calls
        )
        + "<｜tool▁calls▁end｜>"
    )


def kimi(calls: Sequence[Call]) -> str:
    return (
        "<|tool_calls_section_begin|>"
        + "".join(
            f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>"
            f"{dumps(arguments)}<|tool_call_end|>"
            for index, (name, arguments) in enumerate(calls)
        )
        + "<|tool_calls_section_end|>"
    )


def harmony(calls: Sequence[Call]) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{dumps(arguments)}"
        "<|call|>"
        for name, arguments in calls
    )


def dsml(section: str) -> Writer:
    return xml(
        f"<｜DSML｜{section}>",
        f"</｜DSML｜{section}>",
        '<｜DSML｜invoke name="%s">',
        '<｜DSML｜parameter name="%s" string="%%s">',
        ("</｜DSML｜parameter>", "</｜DSML｜invoke>"),
        "",
    )


def functions(open: str, close: str, line: str) -> Writer:
    ends = ("</parameter>", "</function>")
    return each(xml(open, close, "<function=%s>", "<parameter=%s>", ends, line))


def gemma_value(value: object) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, Mapping):
        members = (f"{key}:{gemma_value(each)}" for key, each in value.items())
        return f"{{{','.join(members)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(gemma_value, value))}]"
    return dumps(value)


def gemma(calls: Sequence[Call]) -> str:
    return "".join(
        f"<|tool_call>call:{name}{gemma_value(arguments)}<tool_call|>" for name, arguments in calls
    )


SPACE = "]<]minimax[>["


def minimax_value(value: object) -> str:
    """The elements of an object or array, or the text."""
    if isinstance(value, Mapping):
        pairs = [(key, each) for key, each in value.items()]
    elif isinstance(value, list):
        pairs = [("item", each) for each in value]
    else:
        return raw(value)
    return "".join(f"{SPACE}<{key}>{minimax_value(each)}{SPACE}</{key}>" for key, each in pairs)


def minimax_m3(calls: Sequence[Call]) -> str:
    invokes = (
        f'{SPACE}<invoke name="{name}">{minimax_value(arguments)}{SPACE}</invoke>'
        for name, arguments in calls
    )
    return f"{SPACE}<tool_call>\n" + "\n".join(invokes) + f"\n{SPACE}</tool_call>"


def hy(suffix: str) -> Writer:
    def write_one(call: Call) -> str:
        pairs = (
            f"<arg_key{suffix}>{key}</arg_key{suffix}>\n"
            f"<arg_value{suffix}>{raw(value)}</arg_value{suffix}>\n"
            for key, value in call[1].items()
        )
        head = f"<tool_call{suffix}>{call[0]}<tool_sep{suffix}>\n"
        return f"{head}{''.join(pairs)}</tool_call{suffix}>"

    return lambda calls: (
        f"<tool_calls{suffix}>\n" + "\n".join(map(write_one, calls)) + f"\n</tool_calls{suffix}>"
    )


def cohere(calls: Sequence[Call]) -> str:
    shown = (
        f'    {{"tool_call_id": "{index}", "tool_name": {dumps(name)}, '
        f'"parameters": {dumps(arguments)}}}'
        for index, (name, arguments) in enumerate(calls)
    )
    return "<|START_ACTION|>[\n" + ",\n".join(shown) + "\n]<|END_ACTION|>"


def command_r(calls: Sequence[Call]) -> str:
    shown = (
        f'    {{\n        "tool_name": {dumps(name)},\n'
        f'        "parameters": {dumps(arguments)}\n    }}'
        for name, arguments in calls
    )
    return "Action: ```json\n[\n" + ",\n".join(shown) + "\n]```"


WRITERS: dict[str, Writer] = {
    "hermes": in_tags("<tool_call>", "</tool_call>"),
    "qwen3_coder": functions("<tool_call>", "</tool_call>", "\n"),
    "llama3_json": llama,
    "llama3_json (tagged)": lambda calls: f"<|python_tag|>{llama(calls)}",
    "llama4_json": lambda calls: f"<|python_start|>{llama(calls)}<|python_end|>",
    "pythonic": pythonic,
    "llama4_pythonic": lambda calls: f"<|python_start|>{pythonic(calls)}<|python_end|>",
    "olmo3": olmo,
    "mistral": mistral,
    "mistral (array)": array("[TOOL_CALLS]"),
    "deepseek_v3": deepseek_v3,
    "deepseek_v31": deepseek_v31,
    "deepseek_v32": dsml("function_calls"),
    "deepseek_v4": dsml("tool_calls"),
    "glm45": glm("\n"),
    "glm47": glm(""),
    "kimi_k2": kimi,
    "openai": harmony,
    "minimax_m2": xml(
        "<minimax:tool_call>",
        "</minimax:tool_call>",
        '<invoke name="%s">',
        '<parameter name="%s">',
        ("</parameter>", "</invoke>"),
        "",
    ),
    "seed_oss": functions("<seed:tool_call>", "</seed:tool_call>", ""),
    "minimax": lambda calls: (
        "<tool_calls>\n" + "\n".join(map(json_object, calls)) + "\n</tool_calls>"
    ),
    "hunyuan_a13b": array("<tool_calls>", "</tool_calls>"),
    "jamba": array("<tool_calls>", "</tool_calls>"),
    "longcat": in_tags("<longcat_tool_call>", "</longcat_tool_call>"),
    "granite": array("<|tool_call|>"),
    "internlm": lambda calls: "".join(
        f"<|action_start|><|plugin|>{json_object(call, 'parameters')}<|action_end|>"
        for call in calls
    ),
    "phi4_mini_json": array("functools"),
    "phi4_mini": array("<|tool_call|>", "<|/tool_call|>"),
    "nemotron_json": array("<TOOLCALL>", "</TOOLCALL>"),
    "lfm2": lambda calls: f"<|tool_call_start|>{pythonic(calls)}<|tool_call_end|>",
    "functionary_v31": lambda calls: "".join(
        f"<function={name}>{dumps(arguments)}</function>" for name, arguments in calls
    ),
    "gemma4": gemma,
    "gigachat3": lambda calls: "".join(
        f"<|message_sep|>\n\nfunction call<|role_sep|>\n{json_object(call)}" for call in calls
    ),
    "gigachat3 (token)": lambda calls: "".join(
        f"<|function_call|>{json_object(call)}" for call in calls
    ),
    "cohere_command3": cohere,
    "command_r": command_r,
    "hy_v3": hy(""),
    "hy_v3 (released)": hy(":opensource"),
    "minimax_m3": minimax_m3,
}
"""By form; a form that is written in two ways has a second row."""


def format_of(writer: str) -> str:
    """The form of a row of WRITERS."""
    return writer.partition(" ")[0]
