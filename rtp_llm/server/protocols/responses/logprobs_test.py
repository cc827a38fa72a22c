# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities in responses: by either field, streamed and whole, stored and not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai.types.responses import ResponseOutputText

from rtp_llm.testing.server.agent_clients import CALL, SCHEMA, THOUGHT, Agents, agents
from rtp_llm.testing.server.responses_events import add_up, read_events
from rtp_llm.testing.server.serving import TEXT, run

INCLUDE = {"include": ["message.output_text.logprobs"]}
ADD: dict[str, Any] = {"type": "function", "name": "add", "parameters": SCHEMA, "strict": False}
SAID = " I see:\n\n 😀 1 + 2\nis 3. "
STORED = {"max_stored_responses": 9}


def messages(response: dict[str, Any]) -> list[ResponseOutputText]:
    """The texts of a response, valid by the client's type."""
    found = [item["content"][0] for item in response["output"] if item["type"] == "message"]
    return [ResponseOutputText.model_validate(each, strict=True) for each in found]


def text_of(entries: Any) -> str:
    """Of log-probabilities."""
    return b"".join(bytes(each.bytes) for each in entries).decode()


async def ask(case: Agents, **body: Any) -> dict[str, Any]:
    answer = await case.server.post("/v1/responses", **{"input": "1 + 2?", "tools": [ADD]} | body)
    assert answer.status_code == 200, answer.text
    if body.get("stream"):
        return add_up(read_events(answer.text))
    return dict(answer.json())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("top", [None, 0, 3])
@run
async def test_the_tokens_of_the_text_and_no_others(stream: bool, top: int | None) -> None:
    async with agents(THOUGHT + SAID + "\n" + CALL) as case:
        body = INCLUDE if top is None else INCLUDE | {"top_logprobs": top}
        response = await ask(case, stream=stream, **body)
        assert [item["type"] for item in response["output"]] == [
            "reasoning",
            "message",
            "function_call",
        ]
        (message,) = messages(response)
        entries = message.logprobs
        assert entries and message.text == SAID.rstrip()
        assert text_of(entries) == message.text
        assert response["top_logprobs"] == (top or 0)
        for entry in entries:
            assert entry.logprob == -0.5
            assert len(entry.top_logprobs) == (top or 0)
            assert all(other.bytes for other in entry.top_logprobs)


@run
async def test_events_and_whole_messages_say_the_same() -> None:
    async with agents(THOUGHT + SAID) as case:
        body = {"input": "a", "stream": True, "top_logprobs": 1}
        answer = await case.server.post("/v1/responses", **body)
        found = read_events(answer.text)
        gained = [e for e in found if e["type"] == "response.output_text.delta"]
        assert len(gained) > 5
        deltas = [entry for event in gained for entry in event["logprobs"]]
        (done,) = (e for e in found if e["type"] == "response.output_text.done")
        (message,) = messages(found[-1]["response"])
        assert message.logprobs and done["logprobs"] == deltas
        assert [(each.token, each.logprob) for each in message.logprobs] == [
            (each["token"], each["logprob"]) for each in deltas
        ]
        assert deltas[0].keys() == {"token", "logprob", "top_logprobs"}
        assert deltas[0]["top_logprobs"][0].keys() == {"token", "logprob"}


@run
async def test_without_a_parser_every_token_but_the_last_is_text() -> None:
    async with agents(TEXT) as case:
        for stream in (False, True):
            (message,) = messages(await ask(case, tools=[], stream=stream, **INCLUDE))
            assert message.logprobs and text_of(message.logprobs) == message.text == TEXT


@run
async def test_stored_and_in_the_background() -> None:
    async with agents(THOUGHT + TEXT, **STORED) as case:
        for background in (False, True):
            for stream in (False, True):
                response = await ask(
                    case, background=background, stream=stream, top_logprobs=2, **INCLUDE
                )
                url = f"/v1/responses/{response['id']}"
                while response["status"] in ("queued", "in_progress"):
                    await asyncio.sleep(0.005)
                    response = (await case.server.client.get(url)).json()
                stored = (await case.server.client.get(url)).json()
                assert stored == response
                (message,) = messages(stored)
                assert message.logprobs and text_of(message.logprobs) == TEXT
        answer = await ask(case, previous_response_id=stored["id"])
        assert messages(answer)[0].logprobs == []


@run
async def test_tokens_of_a_stop_string_are_left_out() -> None:
    async with agents(THOUGHT + TEXT) as case:
        (message,) = messages(await ask(case, stop="there", **INCLUDE))
        assert message.logprobs and message.text == TEXT.partition("there")[0]
        # The last token has the beginning of the stop string, too.
        assert text_of(message.logprobs) == "Once upon a time ther"


@run
async def test_the_official_client_reads_them() -> None:
    async with agents(TEXT) as case:
        include: Any = INCLUDE["include"]
        async with case.openai.responses.stream(
            model="demo", input="Hello", include=include, top_logprobs=2
        ) as stream:
            tokens = ""
            async for event in stream:
                if event.type == "response.output_text.delta":
                    tokens += "".join(entry.token for entry in event.logprobs)
            response = await stream.get_final_response()
        (part,) = messages(response.to_dict(mode="json"))
        assert part.logprobs and text_of(part.logprobs) == TEXT
        assert tokens.startswith("Once upon")
