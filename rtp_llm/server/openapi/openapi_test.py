# SPDX-License-Identifier: Apache-2.0
"""/openapi.json is held against the server: by hand, and by schemathesis with all its checks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import msgspec
import pytest
import schemathesis

from rtp_llm.server.types import openai_answers as responses
from rtp_llm.testing.server.schemathesis import find_nothing
from rtp_llm.testing.server.serving import fake_engine, listening, run, served

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module", name="url")
def _url() -> Iterator[str]:
    with listening(fake_engine("a house.")) as url:
        yield url


def test_no_check_of_schemathesis_finds_anything(url: str, tmp_path: Path) -> None:
    assert find_nothing(url, tmp_path, "--phases", "fuzzing", "-n", "4", "--seed", "1") >= 40


def test_a_chat_from_the_schema_is_often_a_valid_one(url: str) -> None:
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    statuses: list[int] = []

    @hypothesis.settings(
        max_examples=30,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=schema[CHAT]["POST"].as_strategy())
    def ask(case: Any) -> None:
        statuses.append(case.call().status_code)

    ask()
    assert len(statuses) >= 30
    assert statuses.count(200) >= len(statuses) // 2, statuses


@pytest.mark.parametrize("body", [{"messages": MESSAGES}, {"prompt": "a house."}])
def test_events_of_streams_are_what_the_schema_says(url: str, body: dict[str, Any]) -> None:
    path = CHAT if "messages" in body else COMPLETION
    operation = schemathesis.openapi.from_url(f"{url}/openapi.json")[path]["POST"]
    operation.Case(body=body | {"stream": True}, media_type="application/json").call_and_validate()


@pytest.mark.parametrize("method", ["GET", "DELETE", "POST", "PUT"])
@run
async def test_the_methods_of_a_405_are_those_of_the_schema(method: str) -> None:
    async with served(fake_engine("a house.")) as server:
        schema = (await server.client.get("/openapi.json")).json()
        for path, operations in schema["paths"].items():
            if method.lower() not in operations:
                place = re.sub(r"\{.*?\}", "x", path)
                answer = await server.client.request(method, place, json={})
                assert answer.status_code == 405, place
                allowed = {*answer.headers["allow"].lower().split(", ")}
                assert allowed - {"head"} == {*operations}, place


EVERYTHING = {
    "logprobs": True,
    "top_logprobs": 2,
    "prompt_logprobs": 1,
    "return_token_ids": True,
    "max_tokens": 4,
}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
STREAMED = {key: value for key, value in EVERYTHING.items() if key != "prompt_logprobs"}
ECHOED = {"prompt": ["a house.", "a"], "echo": True, "logprobs": 2}
# (path, body but for the prompt, type of the answer or of its events)
POSTS = [
    *((CHAT, more, responses.ChatAnswerBody) for more in ({}, {"n": 2}, EVERYTHING)),
    *((CHAT, more, responses.ChatChunk) for more in ({"stream": True}, USAGE, USAGE | STREAMED)),
    (COMPLETION, {}, responses.CompletionAnswerBody),
    (COMPLETION, ECHOED, responses.CompletionAnswerBody),
    (COMPLETION, {"return_token_ids": True, "prompt_logprobs": 1}, responses.CompletionAnswerBody),
    (COMPLETION, USAGE | {"logprobs": 1, "return_token_ids": True}, responses.CompletionAnswerBody),
    ("/tokenize", {"return_token_strs": True}, responses.TokenizeAnswer),
    ("/tokenize", {}, responses.TokenizeAnswer),
]
GETS = {
    "/v1/models": responses.ModelList,
    "/v1/models/demo": responses.ModelCard,
    "/health": responses.HealthAnswer,
    "/liveness": responses.LivenessAnswer,
    "/load": responses.LoadAnswer,
    "/version": responses.VersionAnswer,
    "/server_info": responses.ServerInfoAnswer,
}


@pytest.mark.parametrize(("path", "more", "kind"), POSTS)
@run
async def test_answers_are_what_the_schema_says(
    path: str, more: dict[str, Any], kind: type[msgspec.Struct]
) -> None:
    prompt = {"messages": MESSAGES} if path == CHAT else {"prompt": "a house."}
    async with served(fake_engine("a house.")) as server:
        answer = await server.client.post(path, json=prompt | more)
    assert answer.status_code == 200, answer.text
    events = re.findall(r"^data: (\{.*)$", answer.text, re.MULTILINE)
    assert (len(events) > 2) == ("stream" in more)
    for each in events or [answer.text]:
        msgspec.json.decode(each.encode(), type=kind)


@run
async def test_pages_and_errors_are_what_the_schema_says() -> None:
    async with served(fake_engine("a house.")) as server:
        for path, kind in GETS.items():
            msgspec.json.decode((await server.client.get(path)).content, type=kind)
        answer = await server.client.post("/detokenize", json={"tokens": [1, 2]})
        msgspec.json.decode(answer.content, type=responses.DetokenizeAnswer)
        server.state.start_draining()
        answer = await server.client.get("/health")
        assert msgspec.json.decode(answer.content, type=responses.HealthAnswer).reason
        answer = await server.client.post(CHAT, json={"messages": MESSAGES})
        assert msgspec.json.decode(answer.content, type=responses.ErrorAnswer).error.code


@run
async def test_every_operation_has_its_answers() -> None:
    async with served(fake_engine()) as server:
        schema = (await server.client.get("/openapi.json")).json()
    assert json.dumps(schema).count("HTTPValidationError") == 0
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            assert {"200", "401", "405", "503"} <= operation["responses"].keys(), path
            for answer in operation["responses"].values():
                assert answer["description"] and answer["content"]
    metrics = schema["paths"]["/metrics"]["get"]["responses"]["200"]["content"]
    assert [*metrics] == ["text/plain"]
    assert "429" in schema["paths"][CHAT]["post"]["responses"]


@run
async def test_a_whole_number_may_be_written_as_a_float() -> None:
    """JSON Schema takes 3.0 for an integer."""
    async with served(fake_engine("a house.")) as server:
        assert (await server.client.post("/detokenize", json={"tokens": [1.0, 2]})).is_success
        body = {"messages": MESSAGES, "n": 2.0, "max_tokens": 3.0}
        assert len((await server.client.post(CHAT, json=body)).json()["choices"]) == 2
        assert (await server.client.post(CHAT, json=body | {"n": 1.5})).status_code == 400


@run
async def test_the_page_of_the_schema_loads_nothing_and_can_be_switched_off() -> None:
    async with served(fake_engine()) as server:
        page = await server.client.get("/docs")
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert not re.search(r"<script|src=|https?://|@import|url\(", page.text)
        schema = (await server.client.get("/openapi.json")).json()
        for path in schema["paths"]:
            assert f"<code>{path}</code>" in page.text
        for name in schema["components"]["schemas"]["ChatRequest"]["properties"]:
            assert f"<code>{name}</code>" in page.text
    async with served(fake_engine(), enable_docs=False) as server:
        for path in ("/docs", "/openapi.json"):
            assert (await server.client.get(path)).status_code == 404
