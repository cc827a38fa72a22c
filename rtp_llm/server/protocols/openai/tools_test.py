# SPDX-License-Identifier: Apache-2.0
"""Tools in requests, their calls in answers, whole and streamed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from rtp_llm.testing.server.agents import (
    ARGUMENTS,
    CALL,
    TEMPLATE,
    TOOL,
    agent_tokenizer,
    listening_agent,
    served_agent,
)
from rtp_llm.testing.server.serving import Served, events, run, served
from rtp_llm.text.chat_template import ChatTemplate

TWO = CALL + "\n" + CALL.replace('"add"', '"sub"')
SUB: dict[str, Any] = {"type": "function", "function": {"name": "sub"}}
BOTH = [TOOL, SUB]


def joined(stream: list[Any]) -> dict[int, dict[str, Any]]:
    """The message of each choice that the chunks add up to; every chunk is checked."""
    found: dict[int, dict[str, Any]] = {}
    for chunk in stream:
        if chunk == "[DONE]":
            continue
        ChatCompletionChunk.model_validate(chunk)
        for choice in chunk["choices"]:
            told = found.setdefault(choice["index"], {"content": "", "calls": [], "finish": None})
            told["finish"] = choice["finish_reason"]
            told["content"] += choice["delta"].get("content") or ""
            for piece in choice["delta"].get("tool_calls", ()):
                if "id" in piece:
                    assert piece["index"] == len(told["calls"])
                    assert piece["type"] == "function" and piece["function"]["arguments"] == ""
                    told["calls"].append({"id": piece["id"], **piece["function"]})
                else:
                    assert set(piece["function"]) == {"arguments"}
                    told["calls"][piece["index"]]["arguments"] += piece["function"]["arguments"]
    return found


async def both(server: Served, **body: Any) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
    """The whole answer, checked by the types of OpenAI's package, and what a stream adds up to."""
    response = await server.chat(**body)
    assert response.status_code == 200, response.text
    whole = response.json()
    ChatCompletion.model_validate(whole)
    streamed = await server.chat(**body, stream=True)
    return whole, joined(events(streamed.text))


@pytest.mark.parametrize("n", [1, 2])
@run
async def test_calls_whole_and_streamed(n: int) -> None:
    async with served_agent(TWO, "No, " + CALL) as server:
        whole, streamed = await both(server, tools=BOTH, n=n)
        for choice, names in zip(whole["choices"], [["add", "sub"], ["add"]], strict=False):
            message = choice["message"]
            assert choice["finish_reason"] == streamed[choice["index"]]["finish"] == "tool_calls"
            calls = [call["function"] for call in message["tool_calls"]]
            assert calls == [{"name": name, "arguments": ARGUMENTS} for name in names]
            parts = streamed[choice["index"]]
            assert [call["name"] for call in parts["calls"]] == names
            assert {call["arguments"] for call in parts["calls"]} == {ARGUMENTS}
            assert (message["content"] or "") == parts["content"]
            ids = [call["id"] for call in message["tool_calls"]]
            assert all(each.startswith("call_") and len(each) == 29 for each in ids)
            assert len(set(ids)) == len(ids)
        assert whole["choices"][0]["message"]["content"] is None
        assert '"description": "Adds."' in prompt(server)


def prompt(server: Served) -> str:
    return agent_tokenizer().decode(server.engine.requests[-1].prompt_token_ids, False)


@run
async def test_text_stays_text() -> None:
    broken = 'See: <tool_call>\n{"name": 3}\n</tool_call> '
    for text in ("A house.", broken, ""):
        async with served_agent(text) as server:
            whole, streamed = await both(server, tools=[TOOL])
            (choice,) = whole["choices"]
            assert choice["finish_reason"] == streamed[0]["finish"] == "stop"
            assert "tool_calls" not in choice["message"]
            assert choice["message"]["content"] == (text or None)
            assert streamed[0]["content"] == text


@run
async def test_a_call_that_was_cut() -> None:
    async with served_agent(CALL) as server:
        length = len(agent_tokenizer().encode(CALL, False)) - 20
        whole, streamed = await both(server, tools=[TOOL], max_tokens=length)
        assert whole["choices"][0]["finish_reason"] == streamed[0]["finish"] == "length"
        (call,) = whole["choices"][0]["message"]["tool_calls"]
        assert ARGUMENTS.startswith(call["function"]["arguments"])
        assert streamed[0]["calls"][0]["arguments"] == call["function"]["arguments"]


@run
async def test_one_call_only() -> None:
    async with served_agent(TWO) as server:
        bodies: list[dict[str, Any]] = [{}, {"n": 2}]
        for body in bodies:
            whole, streamed = await both(server, tools=BOTH, parallel_tool_calls=False, **body)
            for choice in whole["choices"]:
                assert len(choice["message"]["tool_calls"]) == 1
                assert choice["finish_reason"] == "tool_calls"
                assert choice["message"]["content"] is None
                assert streamed[choice["index"]]["finish"] == "tool_calls"
        await asyncio.sleep(0.05)
        assert not server.engine.streams


@run
async def test_log_probabilities_and_ids_come_with_calls() -> None:
    async with served_agent("<think>hm</think>" + CALL) as server:
        body = {"tools": [TOOL], "logprobs": True, "return_token_ids": True}
        whole = (await server.chat(**body)).json()["choices"][0]
        ids = whole["token_ids"]
        assert len(whole["logprobs"]["content"]) == len(ids)
        stream = events((await server.chat(**body, stream=True)).text)[:-1]
        parts = [choice for chunk in stream for choice in chunk["choices"]]
        assert [token for part in parts for token in part.get("token_ids", ())] == ids
        shown = [each for part in parts for each in (part["logprobs"] or {}).get("content", ())]
        assert shown == whole["logprobs"]["content"]


@run
async def test_no_calls_when_none_are_wanted() -> None:
    async with served_agent(CALL) as server:
        bodies: list[dict[str, Any]] = [{"tools": [TOOL], "tool_choice": "none"}, {}, {"tools": []}]
        for body in bodies:
            whole, streamed = await both(server, **body)
            assert whole["choices"][0]["message"]["content"] == streamed[0]["content"] == CALL
            assert "Adds." not in prompt(server)


NAMED = {"type": "function", "function": {"name": "sub"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}


@pytest.mark.parametrize(
    ("choice", "names"), [("required", ["add", "sub"]), (NAMED, ["sub"]), (ALLOWED, ["sub"])]
)
@run
async def test_what_must_be_called_is_a_grammar(choice: Any, names: list[str]) -> None:
    async with served_agent(CALL) as server:
        answer = await server.chat(tools=BOTH, tool_choice=choice)
        assert answer.status_code == 200, answer.text
        grammar = server.engine.requests[-1].grammar
        assert grammar is not None
        for name in ("add", "sub"):
            assert (f'\\"{name}\\"' in grammar.text) == (name in names)
        assert "Adds." in prompt(server)  # the model sees all of them
        await server.chat(tools=BOTH)
        assert server.engine.requests[-1].grammar is None


@run
async def test_a_call_of_a_tool_that_was_not_declared_has_the_name_that_the_model_wrote() -> None:
    async with served_agent("No, " + CALL) as server:
        whole, streamed = await both(server, tools=[SUB])
        message = whole["choices"][0]["message"]
        assert message["content"] == streamed[0]["content"] == "No, "
        (call,) = message["tool_calls"]
        assert call["function"] == {"name": "add", "arguments": ARGUMENTS}
        assert streamed[0]["calls"][0]["name"] == "add"


@run
async def test_a_call_of_a_tool_that_is_not_allowed_is_text() -> None:
    auto = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}
    async with served_agent("No, " + CALL) as server:
        whole, streamed = await both(server, tools=BOTH, tool_choice=auto)
        (choice,) = whole["choices"]
        assert choice["finish_reason"] == streamed[0]["finish"] == "stop"
        assert "tool_calls" not in choice["message"] and not streamed[0]["calls"]
        assert choice["message"]["content"] == streamed[0]["content"] == "No, " + CALL
        assert "Adds." not in prompt(server)
    async with served_agent(CALL.replace('"add"', '"sub"')) as server:
        whole, _ = await both(server, tools=BOTH, tool_choice=auto)
        (call,) = whole["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == "sub"


@run
async def test_strict_tools_have_a_grammar() -> None:
    strict = {"type": "function", "function": {**TOOL["function"], "strict": True}}
    async with served_agent(CALL) as server:
        assert (await server.chat(tools=[strict])).status_code == 200
        assert server.engine.requests[-1].grammar is not None
        bad = {"type": "object", "properties": {"a": {"type": "string", "format": "no-such"}}}
        function = {"name": "f", "strict": True, "parameters": {**bad, "not": {"type": "array"}}}
        answer = await server.chat(tools=[{"type": "function", "function": function}])
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "tools"


CASES: list[tuple[dict[str, Any], str, str]] = [
    ({"tool_choice": "required"}, "tool_choice", "no tools are declared"),
    ({"tools": [TOOL], "tool_choice": NAMED}, "tool_choice", "no tool is called 'sub'"),
    ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice", "any"),
    ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice.function", "required"),
    ({"tools": [TOOL], "tool_choice": 3}, "tool_choice", "got int"),
    ({"tools": [TOOL, TOOL]}, "tools[1].function.name", "twice"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name", "not"),
    ({"tools": [{"type": "custom"}]}, "tools[0].type", "custom"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function", "required"),
    ({"tools": "add"}, "tools", "expected array"),
    ({"tools": [SUB] * 1025}, "tools", "too many"),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
        "tools[0].function.parameters",
        "expected object",
    ),
]


@pytest.mark.parametrize("case", range(len(CASES)))
@run
async def test_wrong_tools(case: int) -> None:
    fields, param, text = CASES[case]
    async with served_agent("x") as server:
        for stream in (False, True):
            answer = await server.chat(**fields, stream=stream)
            assert answer.status_code == 400, answer.text
            error = answer.json()["error"]
            assert error["param"].startswith(param) and text in error["message"], error
        assert not server.engine.requests


@run
async def test_hostile_tools() -> None:
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"properties": {"a": deep}}
    wide = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(20_000)}}
    async with served_agent("x") as server:
        for parameters in (deep, wide):
            tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
            for choice in ("auto", "required"):
                answer = await server.chat(tools=[tool], tool_choice=choice)
                assert 400 <= answer.status_code < 500, answer.text[:300]
        assert (await server.chat()).status_code == 200


@run
async def test_a_model_without_a_form_of_calls_says_which_flag_sets_it() -> None:
    async with served() as server:
        error = (await server.chat(tools=[TOOL])).json()["error"]
        assert "--tool-call-parser" in error["message"] and error["code"] == "unsupported"
    async with served(tool_call_parser="hermes") as server:
        error = (await server.chat(tools=[TOOL])).json()["error"]
        assert "--chat-template" in error["message"]
    async with served_agent(CALL, tool_call_parser="none") as server:
        assert (await server.chat(tools=[TOOL])).status_code == 400


@run
async def test_ids_of_mistral_have_nine_characters() -> None:
    text = '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]'
    async with served_agent(text, tool_call_parser="mistral") as server:
        whole, streamed = await both(server, tools=[TOOL])
        (call,) = whole["choices"][0]["message"]["tool_calls"]
        for made in (call["id"], streamed[0]["calls"][0]["id"]):
            assert len(made) == 9 and made.isalnum()


def test_the_official_client_calls_a_tool_and_sends_the_result_back() -> None:
    with listening_agent(CALL) as url:
        client = OpenAI(base_url=f"{url}/v1", api_key="none")
        messages: list[Any] = [{"role": "user", "content": "2 + 1?"}]
        first = client.chat.completions.create(model="demo", messages=messages, tools=[TOOL])  # type: ignore[list-item]
        message = first.choices[0].message
        assert message.tool_calls is not None
        (call,) = message.tool_calls
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "3"}]
        again = client.chat.completions.create(model="demo", messages=messages, tools=[TOOL])  # type: ignore[list-item]
        assert again.usage is not None and first.usage is not None
        assert again.usage.prompt_tokens > first.usage.prompt_tokens
        with client.chat.completions.stream(
            model="demo",
            messages=messages[:1],
            tools=[TOOL],  # type: ignore[list-item]
        ) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_completion().choices[0]
        assert "tool_calls.function.arguments.delta" in kinds
        assert "tool_calls.function.arguments.done" in kinds
        assert final.finish_reason == "tool_calls" and final.message.tool_calls
        assert final.message.tool_calls[0].function.arguments == ARGUMENTS


def test_a_template_that_joins_arguments_to_texts_gets_texts() -> None:
    joins = (
        "{% for m in messages %}{% for c in m.tool_calls %}"
        "{{ '<' + c.function.arguments + '>' }}{% endfor %}{% endfor %}"
    )
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    assert ChatTemplate(joins, {}).render([message]) == '<{"a": 1}>'
    assert not ChatTemplate(joins, {}).takes_objects
    assert ChatTemplate(TEMPLATE, {}).takes_objects
