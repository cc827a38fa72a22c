# SPDX-License-Identifier: Apache-2.0
"""Thinking: its fields, its switches, its budget, and its tokens in the usage."""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from rtp_llm.testing.server.agents import (
    CALL,
    TOOL,
    agent_tokenizer,
    listening_agent,
    served_agent,
)
from rtp_llm.testing.server.serving import Served, events, run, served

OPEN = "so it is 4.</think>\n\nFour."
CLOSED = "<think>" + OPEN
FIELDS = {
    "both": {"reasoning_content", "reasoning"},
    "reasoning_content": {"reasoning_content"},
    "reasoning": {"reasoning"},
}


def prompt(server: Served) -> str:
    return agent_tokenizer().decode(server.engine.requests[-1].prompt_token_ids, False)


async def both(server: Served, **body: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """The whole message, and the fields of the streamed one."""
    whole = (await server.chat(**body)).json()
    ChatCompletion.model_validate(whole)
    streamed: dict[str, str] = {}
    for chunk in events((await server.chat(**body, stream=True)).text)[:-1]:
        ChatCompletionChunk.model_validate(chunk)
        for name, text in chunk["choices"][0]["delta"].items():
            streamed[name] = streamed.get(name, "") + text
    return whole["choices"][0]["message"], streamed


@pytest.mark.parametrize("setting", FIELDS)
@pytest.mark.parametrize("is_open", [True, False])
@run
async def test_the_field_that_was_set(setting: str, is_open: bool) -> None:
    async with served_agent(OPEN if is_open else CLOSED, reasoning_field=setting) as server:
        body = {"enable_thinking": True} if is_open else {}
        message, streamed = await both(server, **body)
        for told in (message, streamed):
            assert told["content"] == "\n\nFour."
            found = {name: told[name] for name in FIELDS["both"] & told.keys()}
            assert found == dict.fromkeys(FIELDS[setting], "so it is 4.")


@run
async def test_thinking_that_is_not_shown_is_counted() -> None:
    async with served_agent(CLOSED) as server:
        message, streamed = await both(server, include_reasoning=False)
        assert not FIELDS["both"] & (message.keys() | streamed.keys())
        assert message["content"] == streamed["content"] == "\n\nFour."
        usage = (await server.chat(include_reasoning=False)).json()["usage"]
        reasoning_text = len(agent_tokenizer().encode("<think>so it is 4.", False))
        assert usage["completion_tokens_details"] == {"reasoning_tokens": reasoning_text}
        options = {"include_usage": True, "continuous_usage_stats": True}
        stream = events((await server.chat(stream=True, stream_options=options)).text)
        counts = [
            chunk["usage"]["completion_tokens_details"]["reasoning_tokens"] for chunk in stream[:-1]
        ]
        assert counts == sorted(counts) and counts[-1] == reasoning_text


@run
async def test_tokens_of_a_thinking_that_was_cut() -> None:
    async with served_agent("<think>" + "so " * 50) as server:
        answer = (await server.chat(max_tokens=20)).json()
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["choices"][0]["message"]["content"] is None
        assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 20


@run
async def test_switches_reach_the_template() -> None:
    on, off = "<think>\n", "<think>\n\n</think>\n\n"
    async with served_agent(OPEN) as server:
        for fields, end in (
            ({}, "assistant\n"),
            ({"enable_thinking": True}, on),
            ({"enable_thinking": False}, off),
            ({"reasoning_effort": "none"}, off),
            ({"reasoning_effort": "high"}, on),
            ({"chat_template_kwargs": {"enable_thinking": True}, "enable_thinking": False}, on),
            ({"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low"}, off),
        ):
            assert (await server.chat(**fields)).status_code == 200
            assert prompt(server).endswith(end), fields
            thinking = server.engine.requests[-1].thinking
            assert thinking is None  # nothing limits it and nothing follows it


@pytest.mark.parametrize("name", ["thinking_token_budget", "thinking_budget"])
@run
async def test_budgets_reach_the_engine(name: str) -> None:
    async with served_agent(OPEN) as server:
        encode = agent_tokenizer().encode
        assert (await server.chat(**{name: 7, "enable_thinking": True})).status_code == 200
        thinking = server.engine.requests[-1].thinking
        assert thinking is not None and thinking.budget == 7
        assert thinking.end_ids == tuple(encode("</think>", False)) and not thinking.begin_ids
        await server.chat(**{name: 0})
        thinking = server.engine.requests[-1].thinking
        assert thinking is not None and thinking.budget == 0
        assert thinking.begin_ids == tuple(encode("<think>", False))
        await server.chat(**{name: -1})
        assert server.engine.requests[-1].thinking is None
        for wrong in (-2, 2**31):
            error = (await server.chat(**{name: wrong})).json()["error"]
            assert error["param"] == name and "-1 or between" in error["message"]


@run
async def test_thinking_that_the_template_cannot_turn_off_is_ended_at_once() -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n"
    fields = {"chat_template": template, "enable_thinking": False}
    async with served_agent(OPEN, trust_request_chat_template=True) as server:
        assert (await server.chat(**fields)).status_code == 200
        thinking = server.engine.requests[-1].thinking
        assert thinking is not None and thinking.budget == 0 and not thinking.begin_ids


@run
async def test_models_that_are_not_known_to_think() -> None:
    async with served() as server:
        refused: list[dict[str, Any]] = [{"enable_thinking": True}, {"thinking_budget": 5}]
        for fields in refused:
            error = (await server.chat(**fields)).json()["error"]
            assert "--reasoning-parser" in error["message"]
        taken: list[dict[str, Any]] = [{"enable_thinking": False}, {"reasoning_effort": "none"}]
        for fields in taken:
            assert (await server.chat(**fields)).status_code == 200


@run
async def test_thinking_comes_back_in_either_field() -> None:
    template = "{% for m in messages %}[{{ m.reasoning_content }}]{% endfor %}"
    messages = [
        {"role": "assistant", "content": "Four.", "reasoning": "a"},
        {"role": "assistant", "content": "Four.", "reasoning_content": "b"},
    ]
    async with served_agent("x", trust_request_chat_template=True) as server:
        await server.chat(messages=messages, chat_template=template)
        assert prompt(server) == "[a][b]"


@run
async def test_thinking_then_a_call() -> None:
    async with served_agent("<think>hm</think>" + CALL) as server:
        message = (await server.chat(tools=[TOOL])).json()["choices"][0]["message"]
        assert message["content"] is None and message["reasoning"] == "hm"
        assert len(message["tool_calls"]) == 1


@run
async def test_stop_strings_end_answers_that_are_read_by_a_parser() -> None:
    async with served_agent(CLOSED) as server:
        message, streamed = await both(server, stop="our")
        assert message["content"] == streamed["content"] == "\n\nF"
        message, streamed = await both(server, stop=["it is"])
        assert message["content"] is None and message["reasoning"] == "so "
        assert streamed["reasoning"] == "so "


def test_the_official_client_shows_the_thinking() -> None:
    with listening_agent(CLOSED) as url:
        client = OpenAI(base_url=f"{url}/v1", api_key="none")
        answer = client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "2 + 2?"}], reasoning_effort="low"
        )
        message: Any = answer.choices[0].message
        assert message.reasoning_content == message.reasoning == "so it is 4."
        assert answer.usage is not None and answer.usage.completion_tokens_details is not None
        assert answer.usage.completion_tokens_details.reasoning_tokens
