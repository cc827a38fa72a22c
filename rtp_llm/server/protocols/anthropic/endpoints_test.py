# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import pytest
from anthropic.types import ModelInfo

from rtp_llm.server.endpoint import http_answer as answers
from rtp_llm.testing.server.agent_clients import agents
from rtp_llm.testing.server.anthropic_events import add_up, read_events
from rtp_llm.testing.server.serving import TEXT, run

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]


@run
async def test_the_client_gets_a_whole_message() -> None:
    async with agents(TEXT) as case:
        extra = {"temperature": 0.5, "top_k": 4}
        message = await case.anthropic.messages.create(
            model="demo", max_tokens=100, system="Be short.", messages=HELLO, extra_body=extra
        )
        (block,) = message.content
        assert block.type == "text" and block.text == TEXT
        assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
        assert message.usage.input_tokens == len(case.engine.requests[0].prompt_token_ids)
        params = case.engine.requests[0].params
        assert (params.temperature, params.top_k) == (0.5, 4)
        assert "system\nBe short.<|im_end|>\n<|im_start|>user\nHello<|im_end|>" in case.prompt


@run
async def test_events_of_the_stream_add_up_to_the_whole() -> None:
    async with agents(TEXT) as case:
        body = {"messages": HELLO, "max_tokens": 100}
        whole = (await case.server.post("/v1/messages", **body)).json()
        streamed = await case.server.post("/v1/messages?beta=true", **body, stream=True)
        assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"
        sent = read_events(streamed.text)
        usage = sent[0]["message"]["usage"]
        assert usage["input_tokens"] == whole["usage"]["input_tokens"]
        assert (usage["output_tokens"], whole["usage"]["output_tokens"] > 0) == (0, True)
        message = add_up(sent)
        assert whole.pop("id") != message.pop("id")
        assert whole == message


@run
async def test_the_streaming_helper_of_the_client() -> None:
    async with (
        agents(TEXT) as case,
        case.anthropic.messages.stream(model="demo", max_tokens=99, messages=HELLO) as stream,
    ):
        assert "".join([text async for text in stream.text_stream]) == TEXT
        assert (await stream.get_final_message()).stop_reason == "end_turn"


@run
async def test_stop_sequences_and_lengths() -> None:
    async with agents(TEXT, context=64) as case:
        create = case.anthropic.messages.create
        message = await create(
            model="demo", max_tokens=40, messages=HELLO, stop_sequences=["there", " a"]
        )
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", " a")
        assert message.content[0].text == "Once upon"  # type: ignore[union-attr]
        message = await create(model="demo", max_tokens=2, messages=HELLO)
        assert message.stop_reason == "max_tokens"
        # Claude Code asks for 32000 whatever the model.
        long: list[Any] = [{"role": "user", "content": "z" * 40}]
        message = await create(model="demo", max_tokens=5000, messages=long)
        assert message.stop_reason == "model_context_window_exceeded"


@run
async def test_counting_needs_no_engine() -> None:
    async with agents(context=32) as case:
        count = await case.anthropic.messages.count_tokens(
            model="demo", system="Be short.", messages=[{"role": "user", "content": "Hello " * 50}]
        )
        assert not case.engine.requests
        assert count.input_tokens > 50
        long: Any = [{"role": "user", "content": "a" * 2**20}]
        with pytest.raises(anthropic.BadRequestError, match="--max-tokenize-characters"):
            await case.anthropic.messages.count_tokens(model="demo", messages=long)
        count = await case.anthropic.messages.count_tokens(model="demo", messages=HELLO)
        await case.anthropic.messages.create(model="demo", max_tokens=2, messages=HELLO)
        assert count.input_tokens == len(case.engine.requests[0].prompt_token_ids)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"messages": HELLO}, "max_tokens is required"),
    ({"messages": [], "max_tokens": 9}, "messages: must not be empty"),
    ({"messages": HELLO, "max_tokens": 0}, "max_tokens"),
    ({"messages": [{"role": "tool", "content": "a"}], "max_tokens": 9}, r"messages\[0\].role"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image"}]}], "max_tokens": 9},
        "Only text parts are understood",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}], "max_tokens": 9},
        r"messages\[0\].content\[0\].text is required",
    ),
    (
        {
            "messages": [{"role": "assistant", "content": [{"type": "tool_result"}]}],
            "max_tokens": 9,
        },
        r"messages\[0\].content\[0\].tool_use_id",
    ),
    ({"messages": HELLO, "max_tokens": 9, "tools": [{"name": "f"}]}, r"tools\[0\].input_schema"),
    (
        {"messages": HELLO, "max_tokens": 9, "tool_choice": {"type": "tool", "name": "f"}},
        "tool_choice: the tool 'f'",
    ),
    ({"messages": HELLO, "max_tokens": 9, "stop_sequences": [""]}, "stop_sequences"),
    (
        {"messages": HELLO, "max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": 0}},
        "thinking.budget_tokens",
    ),
    ({"messages": [{"role": "user", "content": "a" * 9000}], "max_tokens": 9}, "context is 1000"),
]


@pytest.mark.parametrize(("body", "said"), REFUSED)
@run
async def test_a_bad_request_names_the_field(body: dict[str, Any], said: str) -> None:
    async with agents(context=1000) as case:
        with pytest.raises(anthropic.BadRequestError, match=said) as error:
            await case.anthropic.post("/v1/messages", cast_to=object, body=body)
        assert error.value.body["type"] == "error"  # type: ignore[index]
        assert error.value.type == "invalid_request_error"
        assert not case.engine.requests


@run
async def test_errors_have_anthropics_shape() -> None:
    async with agents(api_key="a key", max_request_bytes=2000) as case:
        post = case.server.client.post
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            body = {"messages": HELLO, "max_tokens": 9}
            for key, status, kind in (
                ({}, 401, "authentication_error"),
                ({"x-api-key": "another"}, 401, "authentication_error"),
                ({"x-api-key": "a key"}, 200, None),
                ({"authorization": "Bearer a key"}, 200, None),
            ):
                answer = await post(path, json=body, headers=key)
                assert answer.status_code == status, answer.text
                assert answer.headers["request-id"] == answer.headers["x-request-id"]
                if kind is not None:
                    assert answer.json()["error"]["type"] == kind
                    assert answer.json()["request_id"] == answer.headers["request-id"]
            headers = {"x-api-key": "a key"}
            for more, status, kind in (
                ({"json": body | {"model": "claude"}}, 404, "not_found_error"),
                ({"content": b"{"}, 400, "invalid_request_error"),
                ({"content": b" " * 2001}, 413, "request_too_large"),
            ):
                typed = headers | {"content-type": "application/json"}
                answer = await post(path, headers=typed, **more)
                assert answer.status_code == status
                assert answer.json()["type"] == "error"
                assert answer.json()["error"]["type"] == kind
        answer = await case.server.client.get("/v1/messages", headers=headers)
        assert (answer.status_code, answer.json()["type"]) == (405, "error")
        answer = await post("/v1/messages/batches", headers=headers, json={})
        assert answer.status_code == 404
        assert answer.json()["error"]["type"] == "not_found_error"
        assert "Batches are not stored here" in answer.json()["error"]["message"]
        case.server.state.start_draining()
        answer = await post("/v1/messages", headers=headers, json={"messages": HELLO})
        assert answer.status_code == 503
        assert answer.json()["error"]["type"] == "overloaded_error"


@run
async def test_the_client_finds_the_id_of_its_request() -> None:
    async with agents(TEXT) as case:
        client, headers = case.anthropic, {"x-request-id": "req_mine"}
        message = await client.messages.create(model="demo", max_tokens=9, messages=HELLO)
        assert message._request_id is not None
        with pytest.raises(anthropic.NotFoundError) as error:
            await client.messages.create(
                model="claude", max_tokens=9, messages=HELLO, extra_headers=headers
            )
        assert error.value.request_id == "req_mine"
        assert error.value.body["request_id"] == "req_mine"  # type: ignore[index]


@run
async def test_the_client_reads_the_cards_of_models() -> None:
    async with agents() as case:
        (card,) = [each async for each in case.anthropic.models.list()]
        ModelInfo.model_validate(card.model_dump(), strict=True)
        assert (card.type, card.id, card.display_name) == ("model", "demo", "demo")
        assert card.created_at.timestamp() == case.server.state.created
        assert await case.anthropic.models.retrieve("demo") == card


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
        body = {"messages": HELLO, "max_tokens": 100, "stream": True}
        answer = await case.server.post("/v1/messages", **body)
        await killer
        *_, last = read_events(answer.text)
        assert last["type"] == "error"
        assert last["request_id"] == answer.headers["request-id"]
        assert last["error"]["type"] == "overloaded_error"
        assert "killed by the test" in last["error"]["message"]


@run
async def test_pings_while_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "PING_SECONDS", 0.02)
    async with agents(TEXT) as case:
        case.engine.step_seconds = 0.1
        body = {"messages": HELLO, "max_tokens": 3, "stream": True}
        answer = await case.server.post("/v1/messages", **body)
        names = [line for line in answer.text.splitlines() if line.startswith("event: ")]
        assert names[0] == "event: ping" and names.count("event: ping") >= 3
        assert add_up(read_events(answer.text))["stop_reason"] == "max_tokens"
        assert not case.engine.streams


@run
async def test_an_answer_that_was_begun_is_gone_on_with() -> None:
    async with agents(TEXT) as case:
        said = [*HELLO, {"role": "assistant", "content": "Once"}]
        await case.anthropic.messages.create(model="demo", max_tokens=9, messages=said)
        assert case.prompt.endswith("<|im_start|>assistant\nOnce")


@run
async def test_documents_and_a_screenshot_by_the_client() -> None:
    source: Any = {"type": "base64", "media_type": "image/png", "data": "iVBO"}
    plain: Any = {"type": "text", "media_type": "text/plain", "data": "It rains."}
    shot: Any = {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": [{"type": "image", "source": source}, {"type": "document", "source": plain}],
    }
    use: Any = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    history: Any = [
        {"role": "user", "content": [{"type": "document", "source": plain, "title": "Weather"}]},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [shot]},
    ]
    async with agents() as case:
        answer = await case.anthropic.messages.with_raw_response.create(
            model="demo", max_tokens=9, messages=history
        )
        assert answer.headers["x-rtp-llm-ignored-fields"] == "messages.image"
        assert "<title>Weather</title>\nIt rains." in case.prompt
        assert "[image left out: only text can be read here]\n<document>" in case.prompt
        direct: Any = [{"role": "user", "content": [{"type": "image", "source": source}]}]
        with pytest.raises(anthropic.BadRequestError, match="Only text"):
            await case.anthropic.messages.create(model="demo", max_tokens=9, messages=direct)
    async with agents(lenient_media=False) as case:
        with pytest.raises(anthropic.BadRequestError, match="--lenient-media"):
            await case.anthropic.messages.create(model="demo", max_tokens=9, messages=history)
