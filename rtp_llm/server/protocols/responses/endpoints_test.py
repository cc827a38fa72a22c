# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from rtp_llm.testing.server.agent_clients import agents
from rtp_llm.testing.server.responses_events import add_up, read_events
from rtp_llm.testing.server.serving import TEXT, run


@run
async def test_the_client_gets_a_whole_response() -> None:
    async with agents(TEXT) as case:
        response = await case.openai.responses.create(
            model="demo", input="Hello", instructions="Be short.", metadata={"a": "b"}
        )
        assert response.output_text == TEXT
        assert response.status == "completed"
        assert response.store is False  # type: ignore[attr-defined]
        assert (response.instructions, response.metadata) == ("Be short.", {"a": "b"})
        assert response.usage is not None
        assert response.usage.input_tokens == len(case.engine.requests[0].prompt_token_ids)
        assert "system\nBe short.<|im_end|>\n<|im_start|>user\nHello<|im_end|>" in case.prompt


@run
async def test_events_of_the_stream_add_up_to_the_whole() -> None:
    async with agents(TEXT) as case:
        body = {"input": "Hello", "temperature": 0.5}
        whole = (await case.server.post("/v1/responses", **body)).json()
        streamed = await case.server.post("/v1/responses", **body, stream=True)
        assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"
        response = add_up(read_events(streamed.text))
        for each in (whole, response):
            for name in ("id", "created_at", "completed_at"):
                each.pop(name)
            each["output"][0].pop("id")
        assert whole == response
        assert whole["temperature"] == 0.5


@run
async def test_the_streaming_helper_of_the_client() -> None:
    async with (
        agents(TEXT) as case,
        case.openai.responses.stream(model="demo", input="Hello") as stream,
    ):
        text = ""
        async for event in stream:
            if event.type == "response.output_text.delta":
                text += event.delta
                assert event.snapshot == text
        assert (await stream.get_final_response()).output_text == text == TEXT


@run
async def test_an_answer_that_is_too_short() -> None:
    async with agents(TEXT) as case:
        response = await case.openai.responses.create(
            model="demo", input="Hello", max_output_tokens=2
        )
        assert response.status == "incomplete"
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "max_output_tokens"
        assert response.output[0].status == "incomplete"  # type: ignore[union-attr]
        assert response.usage is not None and response.usage.output_tokens == 2


@run
async def test_counting_needs_no_engine() -> None:
    async with agents(TEXT, max_stored_responses=4) as case:
        responses = case.openai.responses
        tools: list[Any] = [{"type": "function", "name": "add", "parameters": {"type": "object"}}]
        requested: dict[str, Any] = {"model": "demo", "input": "Hello", "tools": tools}
        count = await responses.input_tokens.count(**requested, instructions="Be short.")
        assert (count.object, len(case.engine.requests)) == ("response.input_tokens", 0)
        made = await responses.create(**requested, instructions="Be short.")
        assert made.usage is not None and made.usage.input_tokens == count.input_tokens
        requested = {"model": "demo", "previous_response_id": made.id, "input": "And then?"}
        count = await responses.input_tokens.count(**requested, text={"format": {"type": "text"}})
        assert len(case.engine.requests) == 1
        more = await responses.create(**requested)
        assert more.usage is not None and more.usage.input_tokens == count.input_tokens
        with pytest.raises(openai.BadRequestError, match="input: must not be empty"):
            await responses.input_tokens.count(model="demo")
        with pytest.raises(openai.BadRequestError, match="conversation"):
            await responses.input_tokens.count(model="demo", input="a", conversation="conv_1")
        with pytest.raises(openai.NotFoundError, match="resp_1"):
            await responses.input_tokens.count(input="a", previous_response_id="resp_1")


@run
async def test_conversations_are_not_compacted() -> None:
    async with agents() as case:
        with pytest.raises(openai.NotFoundError, match="Send /v1/responses a shorter input"):
            await case.openai.responses.compact(model="demo", input="Hello")
        answer = await case.server.client.post("/v1/responses/resp_1", json={})
        assert answer.status_code == 405


UNIQUE = {
    "type": "json_schema",
    "strict": True,
    "schema": {"type": "array", "uniqueItems": True},
}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"input": 5}, "input"),
    ({}, "input"),
    ({"input": []}, "input"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": ["hi"]}, "input[0]"),
    ({"input": [{"role": "critic", "content": "a"}]}, "input[0].role"),
    ({"input": [{"id": "a"}]}, "input[0].type"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": ""}]}, "input[0].call_id"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "a"}]}]},
        "input[0].content[0]",
    ),
    (
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": 1}]}]},
        "input[0].content[0].text",
    ),
    ({"input": "a", "temperature": -1}, "temperature"),
    ({"input": "a", "max_output_tokens": 10**6}, "max_output_tokens"),
    ({"input": "a" * 9000}, "input"),
    ({"input": "a", "tools": [{"type": "function"}]}, "tools[0].name"),
    ({"input": "a", "tools": [{"name": "f"}]}, "tools[0].type"),
    ({"input": "a", "tool_choice": "always"}, "tool_choice"),
    ({"input": "a", "tool_choice": {"type": "web_search"}}, "tool_choice"),
    ({"input": "a", "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
    ({"input": "a", "text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
    (
        {"input": "a", "text": {"format": UNIQUE}},
        "text.format.schema",
    ),
    ({"input": "a", "top_logprobs": 21}, "top_logprobs"),
    ({"input": "a", "prompt": {"id": "p"}}, "prompt"),
    ({"input": "a", "conversation": "conv_1"}, "conversation"),
    ({"input": "a", "background": True}, "background"),
    ({"input": "a", "background": True, "previous_response_id": None}, "background"),
    ({"input": "a", "background": True, "stream": True}, "background"),
]


@pytest.mark.parametrize(("body", "param"), REFUSED)
@run
async def test_a_bad_request_names_the_field(body: dict[str, Any], param: str) -> None:
    async with agents(context=1000) as case:
        answer = await case.server.post("/v1/responses", **body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param), error
    assert not case.engine.requests


@run
async def test_an_unknown_model_and_an_unknown_response() -> None:
    async with agents() as case:
        with pytest.raises(openai.NotFoundError, match="serves 'demo'"):
            await case.openai.responses.create(model="gpt-5", input="a")
        with pytest.raises(openai.NotFoundError, match="--max-stored-responses"):
            await case.openai.responses.create(
                model="demo", input="a", previous_response_id="resp_1"
            )
        with pytest.raises(openai.NotFoundError, match="--max-stored-responses"):
            await case.openai.responses.retrieve("resp_1")
        with pytest.raises(openai.NotFoundError, match="Item with id 'msg_1'"):
            await case.openai.responses.create(
                model="demo", input=[{"type": "item_reference", "id": "msg_1"}]
            )


@run
async def test_what_is_not_known_is_skipped_and_named() -> None:
    items = [
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
    ]
    tools = [{"type": "web_search", "external_web_access": True}, {"type": "local_shell"}]
    async with agents() as case:
        body: dict[str, Any] = {"input": items, "tools": tools, "client_metadata": {"a": "b"}}
        body["text"] = {"verbosity": "low"}
        answer = await case.server.post("/v1/responses", **body)
        assert answer.is_success
        assert answer.headers["x-rtp-llm-ignored-fields"] == (
            "client_metadata, input.web_search_call, text.verbosity, tools.local_shell, "
            "tools.web_search"
        )
        assert answer.json()["tools"] == tools


@run
async def test_a_stream_that_fails_says_so() -> None:
    async with agents(TEXT) as case:
        case.engine.step_seconds = 0.01

        async def kill() -> None:
            while not case.engine.steps:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.03)
            case.engine.die("killed by the test")

        killer = asyncio.create_task(kill())
        answer = await case.server.post("/v1/responses", input="Hello", stream=True)
        await killer
        response = add_up(read_events(answer.text))
        assert response["status"] == "failed"
        assert "killed by the test" in response["error"]["message"]
        answer = await case.server.post("/v1/responses", input="Hello", stream=True)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "engine_dead"
