# SPDX-License-Identifier: Apache-2.0
"""More families: templates that write calls in other ways than their prose says, or take few."""

from __future__ import annotations

from rtp_llm.testing.text.families import (
    FAMILIES,
    IM,
    JSON_CALL,
    LLAMA,
    LLAMA_BEGIN,
    LLAMA_TOOLS,
    PARAMETERS_CALL,
    PYTHON_CALL,
    RAW,
    Family,
    im,
    template,
    unless_off,
)

COMMA = "{% if not loop.last %}, {% endif %}"
COHERE = "<|START_OF_TURN_TOKEN|><|%s|>%s%s<|END_OF_TURN_TOKEN|>"
COHERE_BEGIN = "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"
# Calls where content is none, their arguments joined as text.
NULL_CALLS = (
    "{% if m.role == 'assistant' and m.content is none %}"
    "{{ '<｜Assistant｜><｜tool▁calls▁begin｜>' }}"
    "{% for c in m.tool_calls %}{% set c = c.function %}"
    "{{ '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + c.name + '\\n```json\\n' + c.arguments + "
    "'\\n```<｜tool▁call▁end｜>' }}{% if not loop.last %}{{ '\\n' }}{% endif %}{% endfor %}"
    "{{ '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' }}{% elif m.role == 'assistant' %}"
    "{{ '<｜Assistant｜>' + m.content + '<｜end▁of▁sentence｜>' }}"
    "{% else %}{{ '<｜' + m.role + '｜>' + m.content }}{% endif %}"
)
R1_DISTILL = (
    "{{ tools | tojson }}{% for m in messages %}" + NULL_CALLS + "{% endfor %}"
    "{% if add_generation_prompt %}<｜Assistant｜>%s{% endif %}"
)
GEMMA_VALUE = (
    '{% macro value(v) %}{% if v is string %}<|"|>{{ v }}<|"|>'
    "{% elif v is mapping %}{{ '{' }}{% for k, each in v | dictsort %}{{ k }}:{{ value(each) }}"
    "{% if not loop.last %},{% endif %}{% endfor %}{{ '}' }}"
    "{% elif v is boolean %}{{ 'true' if v else 'false' }}"
    "{% elif v is sequence %}[{% for each in v %}{{ value(each) }}{% if not loop.last %},"
    "{% endif %}{% endfor %}]{% else %}{{ v }}{% endif %}{% endmacro %}"
)
M3_VALUE = (
    "{% set ns = ']<]minimax[>[' %}{% macro value(v) %}{% if v is mapping %}"
    "{% for k, each in v.items() %}{{ ns }}<{{ k }}>{{ value(each) }}{{ ns }}</{{ k }}>"
    "{% endfor %}{% elif v is string %}{{ v }}{% elif v is iterable %}{% for each in v %}"
    "{{ ns }}<item>{{ value(each) }}{{ ns }}</item>{% endfor %}"
    "{% else %}{{ v | tojson }}{% endif %}{% endmacro %}"
)


def hy(suffix: str) -> Family:
    """The tags are made with a suffix, so that none stands in the template."""
    tags = "".join(
        f"{{% set {name} = '<{tag}{{}}>'.format(S) %}}"
        f"{{% set end_{name} = '</{tag}{{}}>'.format(S) %}}"
        for name, tag in (
            ("calls", "tool_calls"),
            ("call", "tool_call"),
            ("sep", "tool_sep"),
            ("key", "arg_key"),
            ("val", "arg_value"),
        )
    )
    call = (
        "{{ call }}{{ c.name }}{{ sep }}\n{% for k, v in c.arguments.items() %}"
        f"{{{{ key }}}}{{{{ k }}}}{{{{ end_key }}}}\n{{{{ val }}}}{RAW}{{{{ end_val }}}}\n"
        "{% endfor %}{{ end_call }}\n"
    )
    return Family(
        f"{{% set S = '{suffix}' %}}{tags}"
        + template(
            turn="<｜hy_%s｜>%s%s",
            call=call,
            calls="{{ calls }}\n%s{{ end_calls }}",
            begin="<｜hy_Assistant｜>",
        ),
        "hy_v3",
        None,
    )


MORE: dict[str, Family] = {
    "Apriel-1.5": Family(
        template(
            turn="<|%s|>\n%s%s\n<|end|>\n",
            call=(
                '{{ \'{"name": "\' + c.name + \'", "arguments": \' + c.arguments | string + \', '
                '"id": "1"}\' }}' + COMMA
            ),
            calls="\n<tool_calls>[%s]</tool_calls>",
            begin="<|assistant|>\n",
            tools="Return a list within <tool_call></tool_call>: name, arguments."
            "{{ tools | tojson }}",
        ),
        "hunyuan_a13b",
        None,
    ),
    "Functionary-3.1": Family(
        template(
            turn=LLAMA,
            call="<function={{ c.name }}>{{ c.arguments | tojson }}</function>",
            begin=LLAMA_BEGIN,
            tools='{{ tools | tojson }} "parameters": as <function=example_name>{...}</function>,'
            " code after <|python_tag|>",
        ),
        "functionary_v31",
        None,
    ),
    "Phi-4 with functools": Family(
        template(
            turn="<|im_start|>%s<|im_sep|>%s%s<|im_end|>",
            call=JSON_CALL + COMMA,
            calls="functools[%s]",
            begin="<|im_start|>assistant<|im_sep|>",
        ),
        "phi4_mini_json",
        None,
    ),
    "Gemma-4": Family(
        GEMMA_VALUE
        + template(
            turn="<|turn>%s\n%s%s<turn|>\n",
            call="{{ '<|tool_call>call:' + c.name }}{{ value(c.arguments) }}{{ '<tool_call|>' }}",
            begin="<|turn>model\n" + unless_off("", "<|channel>thought\n<channel|>"),
        ),
        "gemma4",
        "gemma4",
        vocabulary=frozenset({"<|tool_call>", "<tool_call|>", '<|"|>'}),
    ),
    "MiniMax-M3": Family(
        M3_VALUE
        + template(
            turn="]~b]%s\n%s%s[e~[\n",
            call='{{ ns }}<invoke name="{{ c.name }}">{{ value(c.arguments) }}{{ ns }}</invoke>\n',
            calls="{{ ns }}<tool_call>\n%s{{ ns }}</tool_call>",
            begin="]~b]ai\n" + unless_off("<mm:think>", "</mm:think>"),
            tools='{{ tools | tojson }} within <tool_call>, "arguments" as tags',
        ),
        "minimax_m3",
        "minimax_m3",
        (True, False),
    ),
    "MiniMax-M1": Family(
        template(
            turn="<beginning_of_sentence>%s\n%s%s<end_of_sentence>\n",
            call=JSON_CALL + "\n",
            calls="\n<tool_calls>\n%s</tool_calls>",
            begin="<beginning_of_sentence>ai name=M\n",
        ),
        "minimax",
        None,
    ),
    "Hunyuan-A13B": Family(
        template(
            turn="<|%s|>%s%s<|eos|>",
            call=JSON_CALL + COMMA,
            calls="<tool_calls>[%s]</tool_calls>",
            begin="<|assistant|>",
        ),
        "hunyuan_a13b",
        None,
    ),
    "Jamba": Family(
        template(
            turn="<|bom|><|%s|> %s%s<|eom|>",
            call=JSON_CALL + COMMA,
            calls="<tool_calls>[%s]</tool_calls>",
            begin="<|bom|><|assistant|> ",
        ),
        "jamba",
        None,
    ),
    "Hy3-preview": hy(""),
    "Hy3": hy(":opensource"),
    "GigaChat3": Family(
        template(
            turn="%s<|role_sep|>\n%s<|message_sep|>\n\n%s",
            call=(
                '{{ raise_exception("one") if m.tool_calls | length > 1 else "" }}'
                f"function call<|role_sep|>\n{JSON_CALL}<|message_sep|>\n\n"
            ),
            begin="assistant<|role_sep|>\n",
        ),
        "gigachat3",
        None,
    ),
    "GigaChat3 with a token": Family(
        template(
            turn="%s<|role_sep|>\n%s%s<|message_sep|>\n\n",
            call="{% if loop.first %}<|function_call|>" + JSON_CALL + "{% endif %}",
            begin="assistant<|role_sep|>\n",
            tools="{{ tools | tojson }} A function call is JSON.",
        ),
        "gigachat3",
        None,
    ),
    "Command-R7B": Family(
        template(
            turn=COHERE,
            call=(
                '\n    {"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ c.name }}", '
                '"parameters": {{ c.arguments | tojson }}}{% if not loop.last %},{% endif %}'
            ),
            calls="<|START_THINKING|><|END_THINKING|><|START_ACTION|>[%s\n]<|END_ACTION|>",
            begin=COHERE_BEGIN + unless_off("", "<|START_THINKING|><|END_THINKING|>"),
        ),
        "cohere_command3",
        "cohere_command3",
    ),
    "Command-R": Family(
        template(
            turn=COHERE,
            call=(
                '    {\n        "tool_name": "{{ c.name }}",\n'
                '        "parameters": {{ c.arguments | tojson(indent=4) | indent(8) }}\n    }'
                "{% if not loop.last %},\n{% endif %}"
            ),
            calls="\nAction:\n```json\n[\n%s\n]```\n",
            begin=COHERE_BEGIN,
            tools="{{ tools | tojson }} Write 'Action:' and a list.",
        ),
        "command_r",
        None,
    ),
    "DeepSeek-R1-Distill-Llama": Family(
        R1_DISTILL.replace("%s", "<think>\n"), "deepseek_v3", "deepseek_r1", (True, True)
    ),
    "DeepSeek-V2.5": Family(R1_DISTILL.replace("%s", ""), "deepseek_v3", None),
    "Llama-3.3": Family(
        template(
            turn=LLAMA,
            call=(
                '{{ raise_exception("one call at once") if m.tool_calls | length > 1 else "" }}'
                + PARAMETERS_CALL
            ),
            begin=LLAMA_BEGIN,
            tools=LLAMA_TOOLS,
        ),
        "llama3_json",
        None,
    ),
    "Mistral-Small": Family(
        template(
            turn="[%s]%s%s[/INST]",
            call=(
                '{{ raise_exception("9") if m.tool_calls[loop.index0].id | length != 9 else "" }}'
                + JSON_CALL
                + COMMA
            ),
            calls="[TOOL_CALLS][%s]",
            begin="",
        ),
        "mistral",
        None,
    ),
    "ToolACE": Family(
        template(
            turn=LLAMA,
            call=PYTHON_CALL + COMMA,
            calls="[%s]",
            begin=LLAMA_BEGIN,
            tools="{{ tools | tojson }} as [func_name1(params_name1=params_value1)]",
        ),
        "pythonic",
        None,
    ),
    "InternLM-2.5": Family(
        template(
            turn=IM,
            call="<|action_start|><|plugin|>\n" + PARAMETERS_CALL + "<|action_end|>",
            begin="<|im_start|>assistant\n",
        ),
        "internlm",
        None,
    ),
    "LongCat": Family(
        im(
            f"<longcat_tool_call>\n{JSON_CALL}\n</longcat_tool_call>\n",
            tools="{{ tools | tojson }}",
        ),
        "longcat",
        None,
    ),
    "a form that is not known": Family(
        im("<<call {{ c.name }} | {{ c.arguments | tojson }}>>", tools="<tool_call> arguments"),
        None,
        None,
    ),
}
ALL_FAMILIES = {**FAMILIES, **MORE}
