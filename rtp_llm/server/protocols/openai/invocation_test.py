# SPDX-License-Identifier: Apache-2.0
"""Amazon SageMaker's one endpoint answers as the endpoint that the body is for."""

from __future__ import annotations

from typing import Any

import pytest

from rtp_llm.testing.server.serving import CHAT, JSON, PROMPT, run, served

CHAT_PATH, COMPLETION_PATH = "/v1/chat/completions", "/v1/completions"


def without_id(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name not in ("id", "created")}


@pytest.mark.parametrize("padding", [0, 5000], ids=["short", "long"])
@pytest.mark.parametrize(("path", "body"), [(CHAT_PATH, CHAT), (COMPLETION_PATH, PROMPT)])
@run
async def test_answers_are_those_of_the_endpoint(
    path: str, body: dict[str, Any], padding: int
) -> None:
    requested = {**body, "max_tokens": 5, "user": "x" * padding}
    async with served() as server:
        answer = await server.post("/invocations", **requested)
        assert answer.status_code == 200, answer.text
        expected = await server.post(path, **requested)
        assert without_id(answer.json()) == without_id(expected.json())
        streamed = await server.post("/invocations", **requested, stream=True)
        assert streamed.headers["content-type"].startswith("text/event-stream")
        assert streamed.text.endswith("data: [DONE]\n\n")
        for odd in ({"max_tokens": -1}, {"model": "other"}, {"n": "x"}):
            answer = await server.post("/invocations", **requested | odd)
            expected = await server.post(path, **requested | odd)
            assert answer.status_code == expected.status_code in (400, 404)
            assert answer.json() == expected.json()


@run
async def test_other_bodies_are_refused() -> None:
    async with served() as server:
        for body in (b"{}", b'{"input": "embed me"}', b"[]", b"{"):
            answer = await server.client.post("/invocations", content=body, headers=JSON)
            assert answer.status_code == 400, answer.text
        assert (await server.post("/invocations", input="x")).json()["error"]["param"] == "messages"
        for method in ("GET", "POST"):
            assert (await server.client.request(method, "/ping")).status_code == 200
