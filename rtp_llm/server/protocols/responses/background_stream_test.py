# SPDX-License-Identifier: Apache-2.0
"""Responses in the background as streams: left, taken up again, and read by several."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from rtp_llm.testing.server.agent_clients import Agents, agents
from rtp_llm.testing.server.keys import bearer, entry, key_file
from rtp_llm.testing.server.responses_events import add_up, read_events
from rtp_llm.testing.server.serving import TEXT, fake_engine, listening, run

STORED: dict[str, Any] = {"max_stored_responses": 4}
HELLO: dict[str, Any] = {"input": "Hello", "background": True, "stream": True}
KEY = {"authorization": "Bearer a key"}


async def get(case: Agents, response_id: str, query: str = "") -> httpx.Response:
    return await case.server.client.get(f"/v1/responses/{response_id}{query}", headers=KEY)


@run
async def test_the_stream_is_whole_and_can_be_read_again() -> None:
    async with agents(TEXT, **STORED) as case:
        answer = await case.server.client.post("/v1/responses", json=HELLO, headers=KEY)
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        response = add_up(read_events(answer.text))
        assert (response["status"], response["background"]) == ("completed", True)
        place = response["id"]
        assert (await get(case, place)).json() == response
        assert (await get(case, place, "?stream=true")).text == answer.text
        later = (await get(case, place, "?stream=true&starting_after=4")).text
        assert answer.text.endswith(later)
        assert len(read_events(answer.text)) == 5 + len(read_events(later, 5))
        assert (await get(case, place, "?stream=true&starting_after=999")).text == ""
        assert not case.server.state.answers


def test_the_client_takes_its_stream_up_again() -> None:
    engine = fake_engine(TEXT * 8, step_seconds=0.01)
    with listening(engine, **STORED) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="a key", max_retries=0)
        responses = client.responses
        seen: list[Any] = []
        with responses.create(model="demo", **HELLO) as stream:
            for event in stream:
                seen.append(event)
                if event.type == "response.output_text.delta":
                    break
        name = seen[0].response.id
        assert [event.response.status for event in seen[:3]] == ["queued", "queued", "in_progress"]
        assert responses.retrieve(name).status == "in_progress"
        after = seen[-1].sequence_number
        again = [responses.retrieve(name, stream=True, starting_after=after) for _ in range(2)]
        for each in again:
            rest: list[Any] = list(each)
            assert [e.sequence_number for e in seen + rest] == [*range(len(seen) + len(rest))]
            text = "".join(e.delta for e in seen + rest if e.type == "response.output_text.delta")
            assert text == TEXT * 8
            assert rest[-1].type == "response.completed"
        assert responses.retrieve(name).status == "completed"


@run
async def test_what_ends_it_ends_its_streams() -> None:
    async with agents(TEXT * 99, **STORED) as case:
        case.engine.step_seconds = 0.005

        async def begin() -> tuple[str, asyncio.Task[httpx.Response]]:
            post = case.server.client.post("/v1/responses", json=HELLO, headers=KEY)
            task, before = asyncio.create_task(post), {*case.server.state.answers}
            while not (begun := {*case.server.state.answers} - before):
                await asyncio.sleep(0.001)
            (answer,) = begun
            response = answer._writer.response  # type: ignore[attr-defined]
            while response.status == "queued":
                await asyncio.sleep(0.001)
            return response.id, task

        name, task = await begin()
        assert (await case.openai.responses.cancel(name)).status == "cancelled"
        assert read_events((await task).text)[-1]["type"] != "response.completed"
        name, task = await begin()
        await case.openai.responses.delete(name)
        assert (await task).is_success
        name, task = await begin()
        case.engine.die("killed by the test")
        response = add_up(read_events((await task).text))
        assert response["status"] == "failed"
        assert "killed by the test" in response["error"]["message"]


@run
async def test_events_make_way_before_the_response() -> None:
    async with agents(TEXT * 8, **STORED, max_stored_response_bytes=2600) as case:
        answer = await case.server.client.post("/v1/responses", json=HELLO, headers=KEY)
        response = add_up(read_events(answer.text))
        assert (await get(case, response["id"])).json() == response
        refused = await get(case, response["id"], "?stream=true")
        assert refused.status_code == 400
        assert "--max-stored-response-bytes" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("?stream=true", "stream"),
        ("?stream=maybe", "stream"),
        ("?stream=true&starting_after=-1", "starting_after"),
        ("?starting_after=1", "starting_after"),
    ],
)
@run
async def test_what_cannot_be_streamed_says_so(query: str, param: str) -> None:
    async with agents(TEXT, **STORED) as case:
        made = await case.openai.responses.create(model="demo", input="Hello")
        answer = await get(case, made.id, query)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@run
async def test_it_has_one_place_among_the_requests_of_its_key(tmp_path: Path) -> None:
    path = key_file(tmp_path / "keys", entry("sk-a", "a", concurrency=2))
    async with agents(TEXT, **STORED, api_key_file=path) as case:
        case.engine.step_seconds = 0.005
        post, headers = case.server.client.post, bearer("sk-a")
        task = asyncio.create_task(post("/v1/responses", json=HELLO, headers=headers))
        while not case.engine.steps:
            await asyncio.sleep(0.001)
        short = {"input": "Hello", "max_output_tokens": 2}
        answer = await post("/v1/responses", json=short, headers=headers)
        assert answer.status_code == 200, answer.text
        assert (await task).status_code == 200
        (account,) = case.server.state.keys.named
        while account.open:
            await asyncio.sleep(0.001)


@run
async def test_another_key_sees_no_events() -> None:
    async with agents(TEXT, **STORED) as case:
        answer = await case.server.client.post("/v1/responses", json=HELLO, headers=KEY)
        name = read_events(answer.text)[0]["response"]["id"]
        with pytest.raises(openai.NotFoundError):
            await case.openai.with_options(api_key="another").responses.retrieve(name, stream=True)
