# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from rtp_llm.text.chat_template import ChatTemplate
from rtp_llm.text.conversation import Message, Tool, ToolCall
from rtp_llm.text.template_messages import template_messages, template_tools

CONVERSATION = (
    Message("user", "Sum?"),
    Message("assistant", None, "hm", (ToolCall("call_1", "add", '{"a": 1, "b": [2]}'),)),
    Message("tool", "3", tool_call_id="call_1", name="add"),
)


def test_arguments_are_objects_that_templates_index_into() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{{ m.role + ':' + m.content }}"
        "{% for c in m.tool_calls %}{% for k, v in c.function.arguments.items() %}"
        "({{ c.function.name }} {{ k }}={{ v | tojson }}){% endfor %}{% endfor %} | {% endfor %}",
        {},
    )
    rendered = template.render(template_messages(CONVERSATION))
    assert rendered == "user:Sum? | assistant:(add a=1)(add b=[2]) | tool:3 | "


def test_every_field_has_its_place() -> None:
    assert template_messages(CONVERSATION)[1:] == [
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "add", "arguments": '{"a": 1, "b": [2]}'},
                }
            ],
        },
        {"role": "tool", "content": "3", "tool_call_id": "call_1", "name": "add"},
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [("", "{}"), ('{"a": ', '"{\\"a\\": "'), ("[1]", '"[1]"'), ("[" * 9999, None)],
)
def test_arguments_that_are_no_object_stay_text(text: str, shown: str | None) -> None:
    message = Message("assistant", tool_calls=(ToolCall("call_1", "f", text),))
    template = ChatTemplate(
        "{% for m in messages %}{% for c in m.tool_calls %}"
        "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}",
        {},
    )
    assert template.render(template_messages([message])) == (shown or f'"{text}"')


def test_tools_have_the_shape_of_openai() -> None:
    tool = Tool("add", "Adds.", {"type": "object", "required": ["a"]}, strict=True)
    assert template_tools([tool, Tool("now")]) == [
        {
            "type": "function",
            "function": {
                "name": "add",
                "description": "Adds.",
                "parameters": {"type": "object", "required": ["a"]},
            },
        },
        {
            "type": "function",
            "function": {
                "name": "now",
                "description": "",
                "parameters": {"type": "object", "properties": {}},
            },
        },
    ]
