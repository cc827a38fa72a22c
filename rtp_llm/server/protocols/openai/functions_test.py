# SPDX-License-Identifier: Apache-2.0
"""OpenAI's old form of tools: functions in requests, function_call in answers and histories."""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from rtp_llm.testing.server.agents import (
    ARGUMENTS,
    CALL,
    TOOL,
    agent_tokenizer,
    listening_agent,
    served_agent,
)
from rtp_llm.testing.server.serving import demo_tokenizer, events, run, served
from rtp_llm.text.chat_template import ChatTemplate

ADD: dict[str, Any] = TOOL["function"]
SUB: dict[str, Any] = {"name": "sub", "parameters": {"type": "object"}}
HELLO = {"role": "user", "content": "Hello"}


@run
async def test_a_call_whole_and_streamed() -> None:
    async with served_agent("I add. " + CALL + "\n" + CALL) as server:
        whole = (await server.chat(functions=[ADD, SUB])).json()
        ChatCompletion.model_validate(whole)
        (choice,) = whole["choices"]
        message = choice["message"]
        assert message["function_call"] == {"name": "add", "arguments": ARGUMENTS}
        assert "tool_calls" not in message and message["content"] == "I add. "
        assert choice["finish_reason"] == "function_call"
        name, arguments, finish = "", "", None
        for chunk in events((await server.chat(functions=[ADD], stream=True)).text)[:-1]:
            ChatCompletionChunk.model_validate(chunk)
            (part,) = chunk["choices"]
            assert "tool_calls" not in part["delta"]
            called = part["delta"].get("function_call", {})
            name += called.get("name", "")
            arguments += called.get("arguments", "")
            finish = part["finish_reason"]
        assert (name, arguments, finish) == ("add", ARGUMENTS, "function_call")
        prompt = agent_tokenizer().decode(server.engine.requests[-1].prompt_token_ids, False)
        assert '"description": "Adds."' in prompt
        tokenized = (await server.post("/tokenize", messages=[HELLO], functions=[ADD])).json()
        shown = agent_tokenizer().decode(tokenized["tokens"], False)
        assert '"description": "Adds."' in shown


@run
async def test_choices() -> None:
    async with served_agent(CALL) as server:
        for choice in (None, "auto"):
            await server.chat(functions=[ADD, SUB], function_call=choice)
            assert server.engine.requests[-1].grammar is None
        named = await server.chat(functions=[ADD, SUB], function_call={"name": "sub"})
        assert named.status_code == 200
        grammar = server.engine.requests[-1].grammar
        assert grammar is not None
        assert '\\"sub\\"' in grammar.text and '\\"add\\"' not in grammar.text
        none = (await server.chat(functions=[ADD], function_call="none")).json()["choices"][0]
        assert none["message"]["content"] == CALL and none["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"functions": [ADD], "tools": [TOOL]}, "functions", "send one of them"),
        ({"functions": [ADD], "tool_choice": "auto"}, "tool_choice", "send function_call"),
        ({"functions": [ADD], "function_call": {"name": "x"}}, "function_call", "called 'x'"),
        ({"function_call": {"name": "add"}}, "function_call", "called 'add'"),
        ({"functions": [ADD], "function_call": "required"}, "function_call", "required"),
        ({"functions": [ADD, ADD]}, "functions[1].name", "twice"),
        ({"functions": [{}]}, "functions[0].name", "required"),
        ({"functions": "add"}, "functions", "expected array"),
    ],
)
@run
async def test_wrong_functions(fields: dict[str, Any], param: str, text: str) -> None:
    async with served_agent("x") as server:
        answer = await server.chat(**fields)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] == param and text in error["message"], error
        assert not server.engine.requests
        taken = await server.chat(function_call="auto", functions=[])
        assert taken.status_code == 200


@run
async def test_histories_are_those_of_tools() -> None:
    show = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}"
        "{% for c in m.tool_calls %}({{ c.id }} {{ c.function.name }} {{ c.function.arguments.a }})"
        "{% endfor %}{{ m.tool_call_id }}{{ m.name }};{% endfor %}"
    )
    requested = {"role": "assistant", "content": None, "function_call": {**FUNCTION}}
    result = {"role": "function", "name": "add", "content": "2"}
    async with served() as server:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(demo_tokenizer(), "_template", ChatTemplate(show, {}))
            response = await server.chat(messages=[HELLO, requested, result, requested, result])
            assert response.status_code == 200, response.text
        ids = server.engine.requests[-1].prompt_token_ids
        assert demo_tokenizer().decode(ids, False) == (
            "user:Hello;assistant:(call00001 add 1);tool:2call00001add;"
            "assistant:(call00003 add 1);tool:2call00003add;"
        )


FUNCTION = {"name": "add", "arguments": '{"a": 1}'}


def test_the_official_client_calls_and_sends_the_result_back() -> None:
    with listening_agent(CALL) as url:
        create = OpenAI(base_url=f"{url}/v1", api_key="none").chat.completions.create
        messages: list[Any] = [{"role": "user", "content": "2 + 1?"}]
        functions: Any = [ADD]
        first = create(model="demo", messages=messages, functions=functions)
        message = first.choices[0].message
        assert message.function_call is not None and message.tool_calls is None
        assert message.function_call.arguments == ARGUMENTS
        messages += [message, {"role": "function", "name": "add", "content": "3"}]
        again = create(model="demo", messages=messages, functions=functions)
        assert again.usage is not None and first.usage is not None
        assert again.usage.prompt_tokens > first.usage.prompt_tokens
