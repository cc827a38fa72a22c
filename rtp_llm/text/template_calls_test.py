# SPDX-License-Identifier: Apache-2.0
"""Histories with tool calls, for templates that do not take them as clients send them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from rtp_llm.text.chat_template import ChatTemplate, ChatTemplateError
from rtp_llm.text.conversation import Message, ToolCall
from rtp_llm.text.template_calls import CallStyle
from rtp_llm.text.template_messages import template_messages

ARGUMENTS = '{"a": 1}'
ONE = (ToolCall("call_1", "f", ARGUMENTS),)
TWO = (*ONE, ToolCall("call_2", "g", '{"b": 2}'))
RESULT = Message("tool", "3", tool_call_id="call_1")
TALK = (Message("user", "Q"), Message("assistant", None, None, ONE), RESULT)
SEVERAL = (
    Message("user", "Q"),
    Message("assistant", "Both.", "hm", TWO),
    Message("tool", "four", tool_call_id="call_2"),
    Message("tool", "three", tool_call_id="call_1"),
    Message("assistant", "Done."),
)

# As DeepSeek-R1, its Llama distillations and V2.5: calls where content is none, arguments joined.
NULL = (
    "{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}"
    "{% for c in m.tool_calls %}{{ '<call>' + c.function.name + ' ' + c.function.arguments }}"
    "{% endfor %}{% elif m.role == 'assistant' and m.content is not none %}"
    "{{ m.content + '<end>' }}{% else %}{{ '<' + m.role + '>' + m.content }}{% endif %}{% endfor %}"
)
# As Llama 3.1 to 3.3.
SINGLE = (
    "{% for m in messages %}{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}"
    "{{ raise_exception('one call at once') }}{% endif %}"
    "{% set c = m.tool_calls[0].function %}<a>{{ m.content }}{{ m.reasoning_content }}"
    "{{ c.name }}{{ c.arguments | tojson }}"
    "{% else %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
)
# As Mistral's.
NINE = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}"
    "{{ raise_exception('ids have 9 characters') }}{% endif %}"
    "<{{ c.id }}>{{ c.function.arguments | tojson }}{% endfor %}"
    "{% if m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('9') }}"
    "{% endif %}<{{ m.tool_call_id }}>{{ m.content }}{% endif %}{% endfor %}"
)
# As Kimi-K2's, which show the name as a part of the id only.
NAMED = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}<{{ c.id }}>"
    "{{ c.function.arguments | tojson }}{% endfor %}"
    "{% if m.role == 'tool' %}[{{ m.tool_call_id }}]{% endif %}{% endfor %}"
)
PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<{{ c.id }}>{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
)
STYLES = {
    NULL: CallStyle(objects=False, null=True, text="split"),
    SINGLE: CallStyle(several=False),
    NINE: CallStyle(ids="nine"),
    NAMED: CallStyle(ids="named"),
    PLAIN: CallStyle(),
    "{% for m in messages %}{{ m.content }}{% endfor %}": CallStyle(),
}


def render(template: str, messages: tuple[Message, ...]) -> str:
    made = ChatTemplate(template, {})
    return made.render(template_messages(messages), add_generation_prompt=False)


@pytest.mark.parametrize("template", STYLES)
def test_how_a_template_takes_calls(template: str) -> None:
    assert ChatTemplate(template, {}).call_style == STYLES[template]


def test_calls_are_shown_where_content_must_be_none() -> None:
    text = render(NULL, TALK)
    raw: list[dict[str, Any]] = [
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": ARGUMENTS}}
        ]},
        {"role": "tool", "content": "3", "tool_call_id": "call_1"},
    ]  # fmt: skip
    expected = render_jinja_template(conversations=[raw], chat_template=NULL)[0][0]
    assert text == expected == f"<user>Q<call>f {ARGUMENTS}<tool>3"
    assert ChatTemplate(NULL, {}).render(raw, add_generation_prompt=False) == expected
    raw[1]["content"] = ""
    assert ChatTemplate(NULL, {}).render(raw, add_generation_prompt=False) == expected
    both = render(NULL, SEVERAL)
    assert f"Both.<end><call>f {ARGUMENTS}<call>g " in both


def test_a_text_that_has_no_place_next_to_calls_gives_way() -> None:
    alternating = NULL.replace(
        "{% for m in messages %}",
        "{% for m in messages %}{% if not loop.first and m.role == 'assistant' and "
        "messages[loop.index0 - 1].role == 'assistant' %}{{ raise_exception('alternate') }}"
        "{% endif %}",
        1,
    )
    assert ChatTemplate(alternating, {}).call_style.text == "dropped"
    assert f"<call>f {ARGUMENTS}" in render(alternating, SEVERAL)


def test_several_calls_become_messages_of_one_with_their_results() -> None:
    assert render(SINGLE, SEVERAL) == (
        '<user>Q<a>Both.hmf{"a": 1}<tool>three<a>g{"b": 2}<tool>four<assistant>Done.'
    )
    nameless = (*SEVERAL[:2], Message("tool", "three"), Message("tool", "four"))
    assert render(SINGLE, nameless) == (
        '<user>Q<a>Both.hmf{"a": 1}<tool>three<a>g{"b": 2}<tool>four'
    )
    unanswered = (*SEVERAL[:2], Message("tool", "?", tool_call_id="call_9"))
    assert render(SINGLE, unanswered) == '<user>Q<a>Both.hmf{"a": 1}<a>g{"b": 2}<tool>?'


def test_a_template_that_refuses_calls_in_any_form_says_so() -> None:
    with pytest.raises(ChatTemplateError, match="no calls"):
        render(
            "{% for m in messages %}{% if m.tool_calls %}{{ raise_exception('no calls') }}"
            "{% endif %}{% endfor %}",
            TALK,
        )


def test_ids_of_nine_characters() -> None:
    text = render(NINE, TALK)
    id = text[1:10]
    assert id.isalnum()
    assert text == f"<{id}>{ARGUMENTS}<{id}>3"
    assert render(NINE, TALK) == text, "turns of a conversation agree"
    own = (Message("assistant", None, None, (ToolCall("abcDEF123", "f", "{}"),)),)
    assert render(NINE, own) == "<abcDEF123>{}"
    two = render(NINE, SEVERAL)
    assert two.count(id) == 2


def test_ids_that_name_their_function() -> None:
    assert render(NAMED, SEVERAL) == (
        '<functions.f:0>{"a": 1}<functions.g:1>{"b": 2}[functions.g:1][functions.f:0]'
    )
    kept = ToolCall("functions.f:7", "f", "{}")
    assert render(NAMED, (Message("assistant", None, None, (kept,)),)) == "<functions.f:7>{}"


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_a_content_that_is_null_is_empty(role: str) -> None:
    for template in (
        "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% endfor %}",
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}",
        NULL,
    ):
        text = ChatTemplate(template, {}).render([{"role": role, "content": None}])
        assert text in (f"<{role}>", "<end>")
    shown = "{% for m in messages %}{{ m.content is none }}{% endfor %}"
    assert ChatTemplate(shown, {}).render([{"role": role}]) == "False", "what is not there is not"


def test_arguments_reach_a_template_that_joins_texts() -> None:
    empty = Message("assistant", None, None, (ToolCall("c", "f", " "),))
    assert render(NULL, (Message("user", "Q"), empty)) == "<user>Q<call>f {}"
    messages = template_messages(TALK)
    messages[1]["tool_calls"][0]["function"]["arguments"] = json.loads(ARGUMENTS)
    assert ARGUMENTS in ChatTemplate(NULL, {}).render(messages)
