# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rtp_llm.client.events import EventReader
from rtp_llm.client.openai import (
    CHAT,
    COMPLETIONS,
    Delta,
    OpenAIClient,
    ServerError,
    Usage,
    api_base,
)
from rtp_llm.client.sampling import UnknownParameter, parse_parameter
from rtp_llm.testing.server.raw_server import (
    DONE,
    answer_json,
    chat_events,
    event,
    raw_server,
    stream_head,
    with_length,
)
from rtp_llm.testing.server.serving import fake_engine, listening


def ask(parts: list[bytes], path: str = CHAT) -> list[Delta]:
    async def collect(url: str) -> list[Delta]:
        client = OpenAIClient(api_base(url), "key")
        return [delta async for delta in client.stream(path, {"stream": True})]

    with raw_server(lambda _: parts) as server:
        found = asyncio.run(collect(server.url))
    (request,) = server.requests
    assert request.line == f"POST /v1{path} HTTP/1.1"
    assert request.headers["authorization"] == "Bearer key"
    assert request.content == {"stream": True}
    return found


def test_a_chat() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    _, first, second, end, counted = ask(chat_events("Hel", "lo", usage=usage))
    assert (first.text, second.text, end.finish_reason) == ("Hel", "lo", "stop")
    assert first.is_output and not end.is_output
    assert counted.usage == Usage(3, 2)


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_and_calls(name: str) -> None:
    deltas: list[Any] = [{name: "hm", "content": None}, {"tool_calls": [{"index": 0}]}]
    events = [event({"choices": [{"delta": delta}]}) for delta in deltas]
    thought, call = ask([stream_head(), *events, DONE])
    assert thought == Delta(reasoning="hm") and thought.is_output
    assert call == Delta(tool_calls=True) and call.is_output


def test_completions_and_answers_that_are_not_streamed() -> None:
    choice = {"index": 0, "text": "abc", "finish_reason": "length"}
    wanted = Delta(text="abc", finish_reason="length")
    assert ask([stream_head(), event({"choices": [choice]}), DONE], COMPLETIONS) == [wanted]
    assert ask([answer_json({"choices": [choice]})], COMPLETIONS) == [wanted]
    message = {"choices": [{"message": {"content": "abc"}, "finish_reason": "length"}]}
    assert ask([answer_json(message)]) == [wanted]


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([answer_json({"error": {"message": "too long"}}, "400 Bad")], "too long (HTTP 400)"),
        ([answer_json({"error": "no model"}, "404 No")], "no model (HTTP 404)"),
        ([answer_json({"detail": "Not Found"}, "404 No")], "Not Found (HTTP 404)"),
        ([with_length(b"<h1>Bad\nGateway</h1>", "502 Bad")], "<h1>Bad Gateway</h1> (HTTP 502)"),
        ([stream_head(), event({"error": {"message": "it died"}}), DONE], "it died"),
        ([stream_head(), event(["?"]), DONE], "an event cannot be read"),
    ],
)
def test_errors(parts: list[bytes], says: str) -> None:
    with pytest.raises(ServerError) as error:
        ask(parts)
    assert str(error.value).startswith(says)


def test_models_of_a_server() -> None:
    async def models(url: str) -> list[str]:
        return await OpenAIClient(api_base(url)).models()

    with listening(fake_engine()) as url:
        assert asyncio.run(models(url)) == ["demo"]
    broken = raw_server(lambda _: [with_length(b"{}")])
    with broken as server, pytest.raises(ServerError, match="no list of models: "):
        asyncio.run(models(server.url))


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://a:1", "http://a:1/v1"),
        ("http://a:1/", "http://a:1/v1"),
        ("https://a/v1/", "https://a/v1"),
        ("https://a/openai/v1beta", "https://a/openai/v1beta"),
        ("https://a/proxy", "https://a/proxy/v1"),
    ],
)
def test_where_an_api_is(url: str, base: str) -> None:
    assert api_base(url) == base


def test_events_may_be_cut_anywhere() -> None:
    stream = b': ping\r\n\r\nevent: x\ndata: {"a":\ndata: 1}\n\ndata:2\r\n\r\ndata: [DONE]\n\n'
    for at in range(len(stream)):
        reader = EventReader()
        found = reader.feed(stream[:at]) + reader.feed(stream[at:])
        assert found == [b'{"a":\n1}', b"2", b"[DONE]"], at


def test_parameters_by_name() -> None:
    assert parse_parameter("temperature", "0.5") == 0.5
    assert parse_parameter("ignore_eos", "on") is True
    for name, text, says in (
        ("temprature", "1", "no such parameter; there are max_tokens, "),
        ("top_k", "1.5", "top_k: '1.5' is not a whole number"),
        ("top_p", "x", "top_p: 'x' is not a number"),
        ("ignore_eos", "x", "ignore_eos: 'x' is not on or off"),
    ):
        with pytest.raises(UnknownParameter, match=says):
            parse_parameter(name, text)
