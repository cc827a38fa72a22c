# SPDX-License-Identifier: Apache-2.0
"""A turn with a thought, a tool call and its result, by the clients of both protocols."""

from __future__ import annotations

from typing import Any

import pytest

from rtp_llm.server.turn.opaque_reasoning import unseal
from rtp_llm.testing.server import anthropic_events as messages
from rtp_llm.testing.server import responses_events as responses
from rtp_llm.testing.server.agent_clients import CALL, SCHEMA, THOUGHT, agents
from rtp_llm.testing.server.serving import run

QUESTION: Any = [{"role": "user", "content": "What is 1 + 2?"}]
FUNCTION: Any = {"type": "function", "name": "add", "parameters": SCHEMA, "strict": False}
TOOL: Any = {"name": "add", "input_schema": SCHEMA}
SAID = (
    "<|im_start|>user\nWhat is 1 + 2?<|im_end|>\n"
    "<|im_start|>assistant\n<think>\nI should add.\n</think>\n\n"
    '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call><|im_end|>\n'
    "<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
)


@pytest.mark.parametrize("sealed", [False, True])
@run
async def test_responses(sealed: bool) -> None:
    async with agents(THOUGHT + CALL) as case:
        include: Any = ["reasoning.encrypted_content"] if sealed else []
        async with case.openai.responses.stream(
            model="demo", input=QUESTION, tools=[FUNCTION], include=include
        ) as stream:
            arguments = ""
            async for event in stream:
                if event.type == "response.function_call_arguments.delta":
                    arguments += event.delta
            response = await stream.get_final_response()
        reasoning_text, call = response.output
        assert call.type == "function_call" and reasoning_text.type == "reasoning"
        assert call.arguments == arguments == '{"a": 1, "b": 2}'
        assert (
            reasoning_text.content is not None and reasoning_text.content[0].text == "I should add."
        )
        assert response.usage is not None
        assert response.usage.output_tokens_details.reasoning_tokens > 0
        assert '"name": "add"' in case.prompt
        items: Any = [item.to_dict(mode="json") for item in response.output]
        if sealed:
            assert unseal(items[0].pop("encrypted_content")) == items[0].pop("content")[0]["text"]
            items[0]["encrypted_content"] = reasoning_text.encrypted_content
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
        await case.openai.responses.create(
            model="demo", input=[*QUESTION, *items, result], tools=[FUNCTION]
        )
        assert case.prompt.partition("<|im_end|>\n")[2] == SAID


@run
async def test_a_tool_of_a_namespace() -> None:
    said = CALL.replace('"add"', '"sums.add"')
    space = {"type": "namespace", "name": "sums", "description": "", "tools": [FUNCTION]}
    async with agents(said) as case:
        body = {"input": "1 + 2?", "tools": [space, {"type": "web_search"}], "stream": True}
        answer = await case.server.post("/v1/responses", **body)
        (call,) = responses.add_up(responses.read_events(answer.text))["output"]
        assert (call["namespace"], call["name"]) == ("sums", "add")
        assert '"name": "sums.add"' in case.prompt


@pytest.mark.parametrize("shown", [True, False])
@run
async def test_messages(shown: bool) -> None:
    async with agents(THOUGHT + CALL) as case:
        thinking: Any = {"type": "adaptive", "display": "summarized" if shown else "omitted"}
        async with case.anthropic.messages.stream(
            model="demo", max_tokens=999, messages=QUESTION, tools=[TOOL], thinking=thinking
        ) as stream:
            message = await stream.get_final_message()
        reasoning_text, call = message.content
        assert reasoning_text.type == "thinking" and call.type == "tool_use"
        assert reasoning_text.thinking == ("I should add." if shown else "")
        assert (call.name, call.input) == ("add", {"a": 1, "b": 2})
        assert message.stop_reason == "tool_use"
        body = {"messages": QUESTION, "max_tokens": 999, "tools": [TOOL], "stream": True}
        streamed = messages.add_up(
            messages.read_events((await case.server.post("/v1/messages", **body)).text)
        )
        assert streamed["content"][1]["input"] == {"a": 1, "b": 2}
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "3"}
        said: Any = [
            *QUESTION,
            {"role": "assistant", "content": [block.to_dict() for block in message.content]},
            {"role": "user", "content": [result]},
        ]
        await case.anthropic.messages.create(
            model="demo", max_tokens=999, messages=said, tools=[TOOL]
        )
        assert case.prompt.partition("<|im_end|>\n")[2] == SAID


@run
async def test_thinking_can_be_switched_off_and_limited() -> None:
    async with agents("Three.") as case:
        create = case.anthropic.messages.create
        off: Any = {"type": "disabled"}
        await create(model="demo", max_tokens=99, messages=QUESTION, thinking=off)
        assert case.prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
        limited: Any = {"type": "enabled", "budget_tokens": 7}
        await create(model="demo", max_tokens=99, messages=QUESTION, thinking=limited)
        wanted = case.engine.requests[-1].thinking
        assert wanted is not None and wanted.budget == 7
        await case.openai.responses.create(
            model="demo", input="Hello", reasoning={"effort": "none"}
        )
        assert case.prompt.endswith("<think>\n\n</think>\n\n")


@run
async def test_an_answer_of_a_schema() -> None:
    async with agents('{"a": 1, "b": 2}') as case:
        output: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
        await case.anthropic.messages.create(
            model="demo", max_tokens=99, messages=QUESTION, output_config=output
        )
        by_messages = case.engine.requests[-1].grammar
        form: Any = {"format": {"type": "json_schema", "name": "sum", "schema": SCHEMA}}
        await case.openai.responses.create(model="demo", input="1 + 2?", text=form)
        assert by_messages is not None and case.engine.requests[-1].grammar is not None
        form = {"format": {"type": "json_object"}}
        await case.openai.responses.create(model="demo", input="1 + 2?", text=form)
        assert case.engine.requests[-1].grammar not in (None, by_messages)


@run
async def test_a_tool_that_must_be_called() -> None:
    async with agents(CALL) as case:
        choice: Any = {"type": "tool", "name": "add", "disable_parallel_tool_use": True}
        await case.anthropic.messages.create(
            model="demo", max_tokens=99, messages=QUESTION, tools=[TOOL], tool_choice=choice
        )
        assert case.engine.requests[-1].grammar is not None
        grammar = case.engine.requests[-1].grammar
        await case.openai.responses.create(
            model="demo", input=QUESTION, tools=[FUNCTION], tool_choice="required"
        )
        assert case.engine.requests[-1].grammar is not None
        nothing: Any = {"type": "none"}
        await case.anthropic.messages.create(
            model="demo", max_tokens=99, messages=QUESTION, tools=[TOOL], tool_choice=nothing
        )
        assert '"name": "add"' not in case.prompt and grammar is not None


@run
async def test_a_call_that_is_cut() -> None:
    async with agents(CALL) as case:
        body = {"messages": QUESTION, "max_tokens": 40, "tools": [TOOL]}
        whole = (await case.server.post("/v1/messages", **body)).json()
        answer = await case.server.post("/v1/messages", **body, stream=True)
        streamed = messages.add_up(messages.read_events(answer.text))
        assert whole["stop_reason"] == streamed["stop_reason"] == "max_tokens"
        assert whole["content"][0]["input"] == streamed["content"][0]["input"]
        assert whole["content"][0]["name"] == "add"
