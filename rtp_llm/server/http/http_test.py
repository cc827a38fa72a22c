# SPDX-License-Identifier: Apache-2.0
"""Over a real connection: the official OpenAI client, and clients that go away."""

from __future__ import annotations

import asyncio
import json
import math
import socket
from collections.abc import Iterator

import httpx
import openai
import pytest

from rtp_llm.engine.messages import RequestError
from rtp_llm.testing.server.fake_engine import FakeEngine
from rtp_llm.testing.server.serving import CHAT, TEXT, fake_engine, listening, wait_for
from rtp_llm.testing.server_processes import parse_metrics

ASK = [{"role": "user", "content": "Hello"}]


@pytest.fixture(name="engine")
def _engine() -> FakeEngine:
    return fake_engine()


@pytest.fixture(name="url")
def _url(engine: FakeEngine) -> Iterator[str]:
    with listening(engine, api_key="secret") as url:
        yield url


@pytest.fixture(name="client")
def _client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=0)


def test_openai_client(client: openai.OpenAI) -> None:
    models = client.models.list().data
    assert [model.id for model in models] == ["demo"]
    assert client.models.retrieve("demo").owned_by == "rtp-llm"
    answer = client.chat.completions.create(model="demo", messages=ASK, n=2, seed=1)
    assert [choice.message.content for choice in answer.choices] == [TEXT, TEXT]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage and answer.usage.prompt_tokens_details
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer._request_id and answer._request_id.startswith("req_")
    answer = client.chat.completions.create(
        model="demo",
        messages=ASK,
        logprobs=True,
        top_logprobs=1,
        extra_body={"top_k": 5, "min_tokens": 1, "ignore_eos": False},
    )
    assert answer.choices[0].logprobs and answer.choices[0].logprobs.content
    assert answer.choices[0].logprobs.content[0].top_logprobs[0].logprob == -0.5
    done = client.completions.create(
        model="demo", prompt=["Hello", "You"], echo=True, logprobs=1, max_tokens=4, stop=["zzz"]
    )
    assert [choice.text[:3] for choice in done.choices] == ["Hel", "You"]
    assert done.choices[1].logprobs and done.choices[1].logprobs.tokens


def test_openai_client_streaming(client: openai.OpenAI) -> None:
    with client.chat.completions.create(
        model="demo", messages=ASK, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TEXT
    assert [c.usage is not None for c in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices == []
    plain = client.completions.create(model="demo", prompt="x", stream=True, max_tokens=99)
    assert "".join(chunk.choices[0].text for chunk in plain) == TEXT


def test_openai_client_async(url: str) -> None:
    async def ask() -> None:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="secret") as client:

            async def one(stream: bool) -> str:
                if not stream:
                    answer = await client.chat.completions.create(model="demo", messages=ASK)
                    return answer.choices[0].message.content or ""
                parts = await client.chat.completions.create(
                    model="demo", messages=ASK, stream=True
                )
                return "".join([part.choices[0].delta.content or "" async for part in parts])

            assert await asyncio.gather(*(one(i % 2 == 0) for i in range(12))) == [TEXT] * 12

    asyncio.run(ask())


def test_openai_client_errors(client: openai.OpenAI, engine: FakeEngine, url: str) -> None:
    def ask(**changes: object) -> None:
        client.chat.completions.create(**{"model": "demo", "messages": ASK, **changes})  # type: ignore[call-overload]

    with pytest.raises(openai.NotFoundError) as missing:
        ask(model="other")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match=r"between 0\.0 and 100\.0") as bad:
        ask(temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0).models.list()
    engine.refuse = RequestError("queue_full", "full")
    with pytest.raises(openai.RateLimitError):
        ask()
    engine.refuse = None
    engine.die("gone")
    with pytest.raises(openai.InternalServerError, match="The engine has stopped: gone"):
        ask()


def test_error_inside_a_stream(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.step_seconds, engine.allowed_steps = 0.02, lambda: 1
    stream = client.chat.completions.create(model="demo", messages=ASK, stream=True)
    next(iter(stream))
    engine.die("gone")
    with pytest.raises(openai.APIError, match="The engine has stopped: gone"):
        list(stream)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("steps", [0, 1])
def test_a_client_that_goes_away_frees_its_request(
    engine: FakeEngine, url: str, stream: bool, steps: int
) -> None:
    """Also while nothing is generated yet, and for an answer that is not streamed."""
    engine.step_seconds, engine.allowed_steps = 0.02, lambda: steps
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps({**CHAT, "stream": stream, "ignore_eos": True, "n": 2}).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + body)
        wait_for(lambda: engine.streams and engine.steps == steps, 60)
        if stream and steps:
            received = b""
            while b"data: " not in received:
                received += connection.recv(10_000)
    wait_for(lambda: not engine.streams, 60)
    assert engine.aborted == [(1, None)]
    key = {"Authorization": "Bearer secret"}
    wait_for(lambda: 'code="499"' in httpx.get(f"{url}/metrics", headers=key).text, 60)
    scraped = httpx.get(f"{url}/metrics", headers=key).text
    assert parse_metrics(scraped)["rtp_llm_disconnects_total"] == 1
    assert parse_metrics(scraped)["rtp_llm_open_requests"] == 0


def test_thirty_two_streams_share_steps(engine: FakeEngine, url: str) -> None:
    """The batch-size histogram counts the sequences of each step."""
    engine.step_seconds = 0.001

    async def ask() -> None:
        headers = {"Authorization": "Bearer secret"}
        limits = httpx.Limits(max_connections=64)
        async with httpx.AsyncClient(headers=headers, limits=limits, timeout=30) as client:
            body = {**CHAT, "stream": True, "max_tokens": 40, "ignore_eos": True}
            post = client.post(f"{url}/v1/chat/completions", json=body)
            await post
            engine.allowed_steps = lambda: 40
            posts = [client.post(f"{url}/v1/chat/completions", json=body) for _ in range(32)]
            answers = asyncio.gather(*posts)
            while len(engine.streams) < 32:
                await asyncio.sleep(0.01)
            engine.allowed_steps = lambda: math.inf
            responses = await answers
            assert {response.status_code for response in responses} == {200}
            scraped = (await client.get(f"{url}/metrics")).text
        lines = parse_metrics(scraped)
        smaller = lines['rtp_llm_batch_size_bucket{le="24.0"}']
        assert smaller == 40, "those of the first alone"
        assert lines["rtp_llm_batch_size_count"] == 80
        assert lines["rtp_llm_first_token_seconds_count"] == 33
        assert lines["rtp_llm_inter_token_seconds_count"] == 33 * 39
        assert lines["rtp_llm_generated_tokens_total"] == 33 * 40

    asyncio.run(ask())
