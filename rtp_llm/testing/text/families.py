# SPDX-License-Identifier: Apache-2.0
"""Chat templates of model families, described: their marks and structure in a few own lines.

Each shows tools, calls and their results, and begins the answer, as the family's does.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Family:
    """A template, tokens of its vocabulary, and what has to be found.

    ``open``: whether the prompt ends inside of reasoning, also with `enable_thinking` off.
    """

    template: str
    tool_calls: str | None
    reasoning: str | None
    open: tuple[bool, bool] = (False, False)
    vocabulary: frozenset[str] = field(default=frozenset())


def template(
    *, turn: str, call: str, begin: str, tools: str = "{{ tools | tojson }}", calls: str = "%s"
) -> str:
    """`turn`: a message with its `m.content`; `call`: one call `c`, within `calls`."""
    loop = f"{{% for c in m.tool_calls %}}{{% set c = c.function %}}{call}{{% endfor %}}"
    shown = f"{{% if m.tool_calls %}}{calls % loop}{{% endif %}}"
    return (
        f"{{% if tools %}}{turn % ('system', tools, '')}{{% endif %}}"
        "{% for m in messages %}"
        + turn
        % ("{{ m.role }}", "{{ m.content }}", shown)
        + "{% endfor %}"
        "{% if add_generation_prompt %}" + begin + "{% endif %}"
    )


IM = "<|im_start|>%s\n%s%s<|im_end|>\n"
JSON_CALL = '{"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson }}}'
JSON_TAGS = f"<tool_call>\n{JSON_CALL}\n</tool_call>\n"
JSON_TOOLS = (
    '{{ tools | tojson }} Reply with <tool_call>\n{"name": N, "arguments": A}\n</tool_call>.'
)
EACH = "{% for k, v in c.arguments.items() %}"
RAW = "{{ v if v is string else v | tojson }}"
XML_CALL = (
    "<tool_call>\n<function={{ c.name }}>\n"
    f"{EACH}<parameter={{{{ k }}}}>\n{RAW}\n</parameter>\n{{% endfor %}}</function>\n</tool_call>"
)
PARAMETERS_CALL = '{"name": "{{ c.name }}", "parameters": {{ c.arguments | tojson }}}'
LLAMA = "<|start_header_id|>%s<|end_header_id|>\n\n%s%s<|eot_id|>"
LLAMA_BEGIN = "<|start_header_id|>assistant<|end_header_id|>\n\n"
INST = "[%s]%s%s[/%s]"
PYTHON_CALL = (
    "{{ c.name }}({% for k, v in c.arguments.items() %}{{ k }}={{ v | tojson }}"
    "{% if not loop.last %}, {% endif %}{% endfor %})"
)
DEEPSEEK = "<｜%s｜>%s%s"
DEEPSEEK_CALLS = "<｜tool▁calls▁begin｜>%s<｜tool▁calls▁end｜><｜end▁of▁sentence｜>"
V31_CALL = (
    "<｜tool▁call▁begin｜>{{ c.name }}<｜tool▁sep｜>{{ c.arguments | tojson }}<｜tool▁call▁end｜>"
)
V3_CALL = (
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ c.name }}\n```json\n{{ c.arguments | tojson }}"
    "\n```<｜tool▁call▁end｜>"
)
GLM = "<|%s|>\n%s%s"
KIMI = "<|im_user|>%s<|im_middle|>%s%s<|im_end|>"
KIMI_CALL = (
    "<|tool_call_begin|>functions.{{ c.name }}:{{ loop.index0 }}<|tool_call_argument_begin|>"
    "{{ c.arguments | tojson }}<|tool_call_end|>"
)
KIMI_CALLS = "<|tool_calls_section_begin|>%s<|tool_calls_section_end|>"
MINIMAX_CALL = (
    '<invoke name="{{ c.name }}">\n'
    f'{EACH}<parameter name="{{{{ k }}}}">{RAW}</parameter>\n{{% endfor %}}</invoke>\n'
)
DSML_CALL = (
    '<｜DSML｜invoke name="{{ c.name }}">\n'
    f'{EACH}<｜DSML｜parameter name="{{{{ k }}}}" string="{{{{ v is string | tojson }}}}">{RAW}'
    "</｜DSML｜parameter>\n{% endfor %}</｜DSML｜invoke>\n"
)


def glm(line: str) -> str:
    return (
        f"<tool_call>{{{{ c.name }}}}{line}{EACH}<arg_key>{{{{ k }}}}</arg_key>{line}"
        f"<arg_value>{RAW}</arg_value>{line}{{% endfor %}}</tool_call>"
    )


def im(call: str, begin: str = "", tools: str = JSON_TOOLS, calls: str = "%s") -> str:
    """ChatML."""
    begin = "<|im_start|>assistant\n" + begin
    return template(turn=IM, call=call, begin=begin, tools=tools, calls=calls)


def unless_off(on: str, off: str) -> str:
    """`on`, `off` where `enable_thinking` is false."""
    condition = "enable_thinking is defined and enable_thinking is false"
    return f"{{% if {condition} %}}{off}{{% else %}}{on}{{% endif %}}"


NO_THOUGHT = "<think>\n\n</think>\n\n"
STRIP = "{# the history's reasoning ends with </think> #}"
LLAMA_TOOLS = '{{ tools | tojson }} Answer {"name": N, "parameters": P}.'
THINKING_ON = "{% if thinking %}<think>{% else %}</think>{% endif %}"

FAMILIES = {
    "Qwen2.5": Family(im(JSON_TAGS), "hermes", None),
    "Qwen3": Family(im(JSON_TAGS, unless_off("", NO_THOUGHT)), "hermes", "qwen3"),
    "Qwen3-Instruct-2507": Family(
        im(JSON_TAGS), "hermes", None, vocabulary=frozenset({"<think>", "</think>", "<tool_call>"})
    ),
    "Qwen3-Thinking-2507": Family(
        im(JSON_TAGS, "<think>\n") + STRIP, "hermes", "qwen3", (True, True)
    ),
    "QwQ": Family(im(JSON_TAGS, "<think>\n"), "hermes", "qwen3", (True, True)),
    "Qwen3-Coder": Family(im(XML_CALL, tools="{{ tools | tojson }}"), "qwen3_coder", None),
    "Qwen3.5": Family(
        im(XML_CALL, unless_off("<think>\n", NO_THOUGHT)), "qwen3_coder", "qwen3", (True, False)
    ),
    "Nemotron-3": Family(
        im(XML_CALL, unless_off("<think>\n", "<think></think>")),
        "qwen3_coder",
        "qwen3",
        (True, False),
    ),
    "Hermes-3": Family(im(JSON_TAGS), "hermes", None, vocabulary=frozenset({"<|python_tag|>"})),
    "SmolLM3": Family(im(JSON_TAGS, unless_off("", NO_THOUGHT)), "hermes", "qwen3"),
    "Granite-4": Family(
        template(
            turn="<|start_of_role|>%s<|end_of_role|>%s%s<|end_of_text|>\n",
            call=JSON_TAGS,
            begin="<|start_of_role|>assistant<|end_of_role|>",
        ),
        "hermes",
        None,
    ),
    "Granite-3.3": Family(
        template(
            turn="<|start_of_role|>%s<|end_of_role|>%s%s<|end_of_text|>\n",
            call=JSON_CALL + "{% if not loop.last %}, {% endif %}",
            calls="<|tool_call|>[%s]",
            begin="<|start_of_role|>assistant<|end_of_role|>",
        )
        + "{# thoughts in <think></think>, the answer in <response></response> #}",
        "granite",
        None,
    ),
    "Llama-3.1": Family(
        template(turn=LLAMA, call=PARAMETERS_CALL, begin=LLAMA_BEGIN, tools=LLAMA_TOOLS)
        + "{# builtin: <|python_tag|> #}",
        "llama3_json",
        None,
    ),
    "Llama-3.2": Family(
        template(turn=LLAMA, call=PARAMETERS_CALL, begin=LLAMA_BEGIN, tools=LLAMA_TOOLS),
        "llama3_json",
        None,
    ),
    "Llama-4": Family(
        template(
            turn="<|header_start|>%s<|header_end|>\n\n%s%s<|eot|>",
            call=PYTHON_CALL + "{% if not loop.last %}, {% endif %}",
            calls="<|python_start|>[%s]<|python_end|>",
            begin="<|header_start|>assistant<|header_end|>\n\n",
        ),
        "llama4_pythonic",
        None,
    ),
    "OLMo-3-Think": Family(
        im(
            PYTHON_CALL + "\n",
            "<think>",
            calls="<function_calls>\n%s</function_calls>",
            tools="{{ tools | tojson }}",
        ),
        "olmo3",
        "olmo3",
        (True, True),
    ),
    "Mistral-7B-v0.3": Family(
        template(
            turn="[%s]%s%s[/INST]",
            call=JSON_CALL + "{% if not loop.last %}, {% endif %}",
            calls="[TOOL_CALLS][%s]",
            begin="",
        ),
        "mistral",
        None,
    ),
    "Devstral": Family(
        template(
            turn="[%s]%s%s[/INST]",
            call="[TOOL_CALLS]{{ c.name }}[ARGS]{{ c.arguments | tojson }}",
            begin="",
        ),
        "mistral",
        None,
    ),
    "Magistral": Family(
        template(
            turn="[%s]%s%s[/INST]",
            call="[TOOL_CALLS]{{ c.name }}[ARGS]{{ c.arguments | tojson }}",
            begin="",
            tools="First think: [THINK]...[/THINK]{{ tools | tojson }}",
        ),
        "mistral",
        "mistral",
    ),
    "Mistral without a template": Family(
        "", "mistral", "mistral", vocabulary=frozenset({"[TOOL_CALLS]", "[THINK]"})
    ),
    "DeepSeek-V3-0324": Family(
        template(turn=DEEPSEEK, call=V3_CALL, calls=DEEPSEEK_CALLS, begin="<｜Assistant｜>"),
        "deepseek_v3",
        None,
    ),
    "DeepSeek-R1-0528": Family(
        template(turn=DEEPSEEK, call=V3_CALL, calls=DEEPSEEK_CALLS, begin="<｜Assistant｜>")
        + STRIP,
        "deepseek_v3",
        "deepseek_r1",
    ),
    "DeepSeek-R1": Family(
        template(
            turn=DEEPSEEK, call=V3_CALL, calls=DEEPSEEK_CALLS, begin="<｜Assistant｜><think>\n"
        ),
        "deepseek_v3",
        "deepseek_r1",
        (True, True),
    ),
    "DeepSeek-V3.1": Family(
        template(
            turn=DEEPSEEK,
            call=V31_CALL,
            calls=DEEPSEEK_CALLS,
            begin="<｜Assistant｜>" + THINKING_ON,
        ),
        "deepseek_v31",
        "deepseek_v3",
    ),
    "DeepSeek-V3.2 without a template": Family(
        "",
        "deepseek_v32",
        "deepseek_v3",
        vocabulary=frozenset({"｜DSML｜", "<think>", "</think>", "<｜tool▁calls▁begin｜>"}),
    ),
    "DeepSeek-V3.2": Family(
        template(
            turn=DEEPSEEK,
            call=DSML_CALL,
            calls="<｜DSML｜function_calls>\n%s</｜DSML｜function_calls>",
            begin="<｜Assistant｜>" + THINKING_ON,
        ),
        "deepseek_v32",
        "deepseek_v3",
    ),
    "GLM-4.5": Family(
        template(
            turn=GLM,
            call=glm("\n") + "\n",
            begin="<|assistant|>" + unless_off("", "\n<think></think>"),
            tools="{{ tools | tojson }}",
        ),
        "glm45",
        "glm45",
    ),
    "GLM-4.7": Family(
        template(
            turn="<|%s|>%s%s",
            call=glm(""),
            begin="<|assistant|>" + unless_off("<think>", "</think>"),
        ),
        "glm47",
        "glm45",
        (True, False),
    ),
    "Kimi-K2": Family(
        template(
            turn=KIMI, call=KIMI_CALL, calls=KIMI_CALLS, begin="<|im_assistant|>a<|im_middle|>"
        ),
        "kimi_k2",
        None,
    ),
    "Kimi-K2-Thinking": Family(
        template(
            turn=KIMI, call=KIMI_CALL, calls=KIMI_CALLS, begin="<|im_assistant|>a<|im_middle|>"
        )
        + STRIP,
        "kimi_k2",
        "kimi_k2",
    ),
    "gpt-oss": Family(
        template(
            turn="<|start|>%s<|message|>%s%s<|end|>",
            call=(
                "<|end|><|start|>assistant<|channel|>commentary to=functions.{{ c.name }} "
                "<|constrain|>json<|message|>{{ c.arguments | tojson }}<|call|>"
            ),
            begin="<|start|>assistant",
        ),
        "openai",
        "openai_gptoss",
    ),
    "MiniMax-M2": Family(
        template(
            turn="]~b]%s\n%s%s[e~[\n",
            call=MINIMAX_CALL,
            calls="<minimax:tool_call>\n%s</minimax:tool_call>",
            begin="]~b]ai\n<think>\n",
        )
        + STRIP,
        "minimax_m2",
        "minimax_m2",
        (True, True),
    ),
    "Seed-OSS": Family(
        template(
            turn="<seed:bos>%s\n%s%s<seed:eos>",
            call=(
                "<seed:tool_call>\n<function={{ c.name }}>\n"
                f"{EACH}<parameter={{{{ k }}}}>{RAW}</parameter>\n{{% endfor %}}</function>\n"
                "</seed:tool_call>"
            ),
            begin="<seed:bos>assistant\n",
            tools="{{ tools | tojson }} Think within <seed:think></seed:think>.",
        ),
        "seed_oss",
        "seed_oss",
    ),
    "Phi-4-mini": Family(
        template(
            turn="<|%s|>%s%s<|end|>",
            call=JSON_CALL + "{% if not loop.last %}, {% endif %}",
            calls="functools[%s]",
            begin="<|assistant|>",
            tools="<|tool|>{{ tools | tojson }}<|/tool|>",
        ),
        "phi4_mini_json",
        None,
    ),
    "Phi-4-mini, mended": Family(
        template(
            turn="<|%s|>%s%s<|end|>",
            call=f"<|tool_call|>{JSON_CALL}<|/tool_call|>",
            begin="<|assistant|>",
            tools="<|tool|>{{ tools | tojson }}<|/tool|>",
        ),
        "phi4_mini",
        None,
    ),
    "Nemotron-Nano-v2": Family(
        template(
            turn="<SPECIAL_10>%s\n%s%s\n",
            call=JSON_CALL + "{% if not loop.last %}, {% endif %}",
            calls="<TOOLCALL>[%s]</TOOLCALL>",
            begin="<SPECIAL_11>Assistant\n" + unless_off("<think>\n", "<think></think>"),
        ),
        "nemotron_json",
        "qwen3",
        (True, False),
    ),
    "LFM2": Family(
        im(
            PYTHON_CALL + "{% if not loop.last %}, {% endif %}",
            calls="<|tool_call_start|>[%s]<|tool_call_end|>",
            tools="<|tool_list_start|>{{ tools | tojson }}<|tool_list_end|>",
        ),
        "lfm2",
        None,
    ),
    "Gemma-3": Family(
        template(
            turn="<start_of_turn>%s\n%s%s<end_of_turn>\n", call="", begin="<start_of_turn>model\n"
        ),
        None,
        None,
    ),
}
