# SPDX-License-Identifier: Apache-2.0
"""Rendered prompts equal those of transformers, on templates in the style of common models."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from transformers.utils import chat_template_utils

from rtp_llm.testing.model_folders import CHATML
from rtp_llm.text import chat_template as own
from rtp_llm.text.chat_template import ChatTemplate, ChatTemplateError

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

LLAMA_3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{#- The system message, if there is one, comes first #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- else %}
        {{- raise_exception("no tools") }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

QWEN_3 = """{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and \
not(message.content.startswith('<tool_response>') and \
message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role in ("user", "system") %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n') %}
            {%- set reasoning_content = reasoning_content.split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '<|im_start|>assistant\\n<think>\\n' + reasoning_content.strip('\\n') }}
            {{- '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('conversation roles must alternate user/assistant/user/...') }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.first and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] + eos_token}}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported") }}
    {%- endif %}
{%- endfor %}
"""

FEATURES = """{% for message in messages %}
    {% if message.role == 'system' %}{% continue %}{% endif %}
{{ loop.index }}:{{ message | tojson }}
{{ message | tojson(indent=2) }}
    {% generation %}{{ message.content }}{% endgeneration %}

    {% if loop.index > 5 %}{% break %}{% endif %}
{% endfor %}
{{ {'b': 'é<&>', 'a': [1, none, true]} | tojson(sort_keys=true) }} {{ pad_token }}.
{{ custom | default('none') }} {{ dict(a=1).items() | list }}
{% if tools %}tools{% endif %}{% if documents is none %}no documents{% endif %}
"""

TEMPLATES = {
    "llama_3": LLAMA_3,
    "qwen_3": QWEN_3,
    "mistral": MISTRAL,
    "chatml": CHATML,
    "features": FEATURES,
}

USER = {"role": "user", "content": "What is 12 + 30? <b>é</b> \n"}
CHATS: list[list[dict[str, Any]]] = [
    [USER],
    [{"role": "system", "content": " Be brief. "}, USER],
    [USER, {"role": "assistant", "content": "<think>\nsum\n</think>\n\n42", "name": None}, USER],
    [USER, {"role": "assistant", "content": "42", "reasoning_content": "easy"}, USER],
    [USER, {"role": "assistant", "content": "42", "reasoning_content": "easy"}],
]


def reference(template: str, messages: list[dict[str, Any]], **variables: Any) -> str:
    plain = [
        {k: v for k, v in message.items() if v is not None or k == "content"}
        for message in messages
    ]
    rendered, _ = chat_template_utils.render_jinja_template(
        conversations=[plain], chat_template=template, **{**SPECIAL, **variables}
    )
    return str(rendered[0])


@pytest.fixture(autouse=True)
def fixed_date(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fixed(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Fixed:
            return cls(2025, 6, 7)

    monkeypatch.setattr(own, "datetime", Fixed)
    monkeypatch.setattr(chat_template_utils, "datetime", Fixed)


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("messages", CHATS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_equals_transformers(name: str, messages: list[dict[str, Any]], prompt: bool) -> None:
    template = TEMPLATES[name]
    for variables in ({}, {"enable_thinking": False, "custom": "x"}, {"date_string": "today"}):
        own_text = ChatTemplate(template, SPECIAL).render(
            messages, add_generation_prompt=prompt, **variables
        )
        expected = reference(template, messages, add_generation_prompt=prompt, **variables)
        assert own_text == expected
        assert "12 + 30" in own_text


LAST = [USER, {"role": "assistant", "content": "The sum is  "}]


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name != "features"])
@pytest.mark.parametrize("content", ["The sum", " The sum is  ", "The sum is\n"])
def test_a_continued_message_equals_transformers(name: str, content: str) -> None:
    messages = [USER, {"role": "assistant", "content": content}]
    text = ChatTemplate(TEMPLATES[name], SPECIAL).render(
        messages, add_generation_prompt=False, continue_final_message=True
    )
    expected = reference(TEMPLATES[name], messages, continue_final_message=True)
    assert text == expected
    assert text.rstrip().endswith(content.strip())


def test_what_cannot_be_continued_is_refused() -> None:
    template = ChatTemplate(CHATML, SPECIAL)
    with pytest.raises(ChatTemplateError, match="cannot both be set"):
        template.render(LAST, add_generation_prompt=True, continue_final_message=True)
    for messages in ([], [{"role": "assistant", "content": None}]):
        with pytest.raises(ChatTemplateError, match="last message has no text"):
            template.render(messages, add_generation_prompt=False, continue_final_message=True)
    with pytest.raises(ChatTemplateError, match="does not show the last message"):
        ChatTemplate("x", SPECIAL).render(
            LAST, add_generation_prompt=False, continue_final_message=True
        )


def test_a_content_that_is_null_reaches_the_template_as_empty_text() -> None:
    template = ChatTemplate("{% for m in messages %}[{{ m.content }}]{% endfor %}", SPECIAL)
    messages = [{"role": "assistant", "content": None}, {"role": "user"}, LAST[-1]]
    assert template.render(messages) == "[][][The sum is  ]"


def test_the_names_that_a_template_reads() -> None:
    source = "{% set own = 1 %}{{ own }}{% if reasoning_effort %}{{ reasoning_effort }}{% endif %}"
    assert ChatTemplate(source, SPECIAL).variables == {"reasoning_effort"}
    assert "enable_thinking" in ChatTemplate(QWEN_3, SPECIAL).variables


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ 1 + 'a' }}", "TypeError: unsupported operand"),
        ("{{ nothing.at.all }}", "'nothing' is undefined"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ messages[0].content.encode('latin-1') }}" + "{{ '%c' % 0xd800 }}", "UnicodeEncode"),
        ("{{ raise_exception('x' * 5000) }}", r"x{1000}\.\.\."),
        ("{% for i in range(10**9) %}{% endfor %}", "OverflowError"),
    ],
)
def test_any_exception_of_a_template_has_its_words(source: str, words: str) -> None:
    with pytest.raises(ChatTemplateError, match=words):
        ChatTemplate(source, SPECIAL).render([{"role": "user", "content": "x"}])


def test_a_template_nested_too_deeply_does_not_compile() -> None:
    with pytest.raises(ChatTemplateError, match="does not compile"):
        ChatTemplate("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", SPECIAL)


def test_strftime_now_shows_the_date() -> None:
    assert "Today Date: 07 Jun 2025" in ChatTemplate(LLAMA_3, SPECIAL).render([USER])


def test_raise_exception_carries_its_message() -> None:
    with pytest.raises(ChatTemplateError, match="roles must alternate"):
        ChatTemplate(MISTRAL, SPECIAL).render([USER, USER])


@pytest.mark.parametrize("messages", [[{"role": "user"}], [{}], [{"role": 3, "content": [1]}]])
def test_any_failure_is_a_template_error(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(ChatTemplateError, match=r"cannot render|refused"):
        ChatTemplate(CHATML, SPECIAL).render(messages)


def test_broken_template() -> None:
    with pytest.raises(ChatTemplateError, match="does not compile"):
        ChatTemplate("{% for %}", SPECIAL)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__ }}{{ raise_exception.__globals__['json'].x }}",
        "{% set ns = namespace(__class__=1) %}",
        "{% set ns = namespace() %}{% set ns.__init__ = 1 %}",
    ],
)
def test_sandbox(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        ChatTemplate(source, SPECIAL).render([USER])


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt", "self", "loop"])
def test_reserved_variables(name: str) -> None:
    if name == "add_generation_prompt":
        assert "assistant" not in ChatTemplate(CHATML, SPECIAL).render([USER], **{name: False})
        return
    with pytest.raises(ChatTemplateError, match=f"{name} cannot be set"):
        ChatTemplate(CHATML, SPECIAL).render([USER], **{name: []})
