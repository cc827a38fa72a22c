# SPDX-License-Identifier: Apache-2.0
"""Conversations with tool calls and their results, as clients send them back."""

from __future__ import annotations

from typing import Any

import pytest

from rtp_llm.testing.server.serving import demo_tokenizer, run, served
from rtp_llm.text.chat_template import ChatTemplate

HELLO = {"role": "user", "content": "Hello"}
FUNCTION = {"name": "add", "arguments": '{"a": 1}'}
CALL = {"id": "call_1", "type": "function", "function": FUNCTION}
SHOW = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls %}({{ c.id }} {{ c.function.name }} {{ c.function.arguments.a }})"
    "{% endfor %}{{ m.tool_call_id }}{{ m.reasoning_content }};{% endfor %}"
)


@pytest.mark.parametrize(
    ("messages", "param", "text"),
    [
        ([{"role": "function", "content": "x"}], "messages[0].name", "is required"),
        ([{"role": "function", "name": "f"}], "messages[0].content", "is required"),
        (
            [{"role": "assistant", "function_call": {"name": 3}}],
            "messages[0].function_call.name",
            "expected str",
        ),
        (
            [{"role": "assistant", "function_call": {"arguments": "{}"}}],
            "messages[0].function_call.name",
            "is required",
        ),
        (
            [{**HELLO, "function_call": FUNCTION}],
            "messages[0].function_call",
            "only the assistant",
        ),
        ([{**HELLO, "tool_calls": [CALL]}], "messages[0].tool_calls", "only the assistant"),
        (
            [{"role": "assistant", "tool_calls": [{}]}],
            "messages[0].tool_calls[0].function",
            "is required",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": 3}}]}],
            "messages[0].tool_calls[0].function.name",
            "expected str",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"type": "custom", "custom": {}}]}],
            "messages[0].tool_calls[0].type",
            "custom",
        ),
        ([HELLO, {"role": "tool"}], "messages[1].content", "is required"),
    ],
)
@run
async def test_wrong_histories(messages: list[Any], param: str, text: str) -> None:
    async with served() as server:
        response = await server.chat(messages=messages)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, param), error
        assert text in error["message"]


@pytest.mark.parametrize("arguments", ['{"a": 1}', {"a": 1}])
@run
async def test_calls_and_results_reach_the_template(arguments: Any) -> None:
    async with served() as server:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(demo_tokenizer(), "_template", ChatTemplate(SHOW, {}))
            call = {**CALL, "function": {**FUNCTION, "arguments": arguments}}
            requested = {
                "role": "assistant",
                "content": None,
                "reasoning": "hm",
                "tool_calls": [call],
            }
            result = {"role": "tool", "tool_call_id": "call_1", "content": "2"}
            response = await server.chat(messages=[HELLO, requested, result])
            assert response.status_code == 200, response.text
        prompt = server.engine.requests[-1].prompt_token_ids
        shown = "user:Hello;assistant:(call_1 add 1)hm;tool:2call_1;"
        assert demo_tokenizer().decode(prompt, False) == shown


JOINS = "{% for m in messages %}{{ m.role + ':' + m.content + ';' }}{% endfor %}"
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/v1/chat/completions",
            {
                "messages": [
                    HELLO,
                    {"role": "assistant", "content": None, "reasoning": "hm"},
                    {"role": "user", "content": None},
                ]
            },
        ),
        (
            "/v1/responses",
            {"input": [HELLO, THOUGHT, {"role": "user", "content": ""}]},
        ),
        (
            "/v1/messages",
            {
                "max_tokens": 4,
                "messages": [
                    HELLO,
                    {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}]},
                    {"role": "user", "content": ""},
                ],
            },
        ),
    ],
)
@run
async def test_messages_without_text_are_empty_in_the_prompt(path: str, body: Any) -> None:
    async with served() as server:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(demo_tokenizer(), "_template", ChatTemplate(JOINS, {}))
            response = await server.post(path, **{"model": "demo", **body})
            assert response.status_code == 200, response.text
        prompt = server.engine.requests[-1].prompt_token_ids
        shown = demo_tokenizer().decode(prompt, False)
        assert shown == "user:Hello;assistant:;user:;"
