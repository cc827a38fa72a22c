# SPDX-License-Identifier: Apache-2.0
"""A model with several names: requests may have any, answers have the first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rtp_llm.testing.server.keys import bearer, entry, key_file
from rtp_llm.testing.server.serving import CHAT, run, served

NAMES = ("demo", "gpt-4o", "org/demo:free")
MESSAGES = {"messages": CHAT["messages"], "max_tokens": 4}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": MESSAGES,
    "/v1/completions": {"prompt": "Hello", "max_tokens": 4},
    "/v1/messages": MESSAGES,
    "/v1/responses": {"input": "Hello", "max_output_tokens": 4},
}


@run
async def test_every_name_is_listed() -> None:
    async with served(served_model_name=NAMES) as server:
        listed = (await server.client.get("/v1/models")).json()
        assert [card["id"] for card in listed["data"]] == list(NAMES)
        assert (listed["first_id"], listed["last_id"]) == (NAMES[0], NAMES[-1])
        for name in NAMES:
            assert (await server.client.get(f"/v1/models/{name}")).json()["id"] == name
        for path in ("/api/tags", "/api/ps"):
            models = (await server.client.get(path)).json()["models"]
            assert [each["name"] for each in models] == [
                "demo:latest",
                "gpt-4o:latest",
                "org/demo:free",
            ]
        document = (await server.client.get("/openapi.json")).json()
        chat = document["components"]["schemas"]["ChatRequest"]["properties"]
        assert chat["model"]["enum"] == [*NAMES, None]


@pytest.mark.parametrize("path", BODIES)
@run
async def test_answers_have_the_first_name(path: str) -> None:
    async with served(served_model_name=NAMES) as server:
        for name in (*NAMES, None):
            answer = await server.post(path, model=name, **BODIES[path])
            assert answer.status_code == 200, answer.text
            assert answer.json()["model"] == NAMES[0]
        answer = await server.post(path, model="gpt-4", **BODIES[path])
        assert answer.status_code == 404
        assert "'demo', 'gpt-4o', 'org/demo:free'" in answer.json()["error"]["message"]


@run
async def test_ollama_answers_with_the_name_that_was_asked_for() -> None:
    async with served(served_model_name=NAMES) as server:
        for name in ("gpt-4o", "gpt-4o:latest", "org/demo:free"):
            answer = await server.post("/api/chat", model=name, stream=False, **MESSAGES)
            assert answer.json()["model"] == name
            assert (await server.post("/api/show", model=name)).status_code == 200
        answer = await server.post("/api/show", model="gpt-4")
        assert answer.status_code == 404 and "gpt-4o:latest" in answer.text


@run
async def test_a_key_may_have_some_of_the_names(tmp_path: Path) -> None:
    keys = key_file(
        tmp_path / "keys",
        entry("sk-a", "a", models='["gpt-4o"]'),
        entry("sk-b", "b", models='["other"]'),
    )
    async with served(served_model_name=NAMES, api_key_file=keys) as server:
        client = server.client
        listed = (await client.get("/v1/models", headers=bearer("sk-a"))).json()["data"]
        assert [card["id"] for card in listed] == ["gpt-4o"]
        tags = (await client.get("/api/tags", headers=bearer("sk-a"))).json()["models"]
        assert [each["name"] for each in tags] == ["gpt-4o:latest"]
        expected = {"gpt-4o": 200, None: 200, "demo": 403, "x": 404}
        for name, status in expected.items():
            for path, fields in BODIES.items():
                body = {"model": name, **fields}
                answer = await client.post(path, json=body, headers=bearer("sk-a"))
                assert answer.status_code == status, answer.text
            body = {"model": name, **MESSAGES}
            answer = await client.post("/api/chat", json=body, headers=bearer("sk-a"))
            assert answer.status_code == status, answer.text
        for name in ("gpt-4o", None):
            body = {"model": name, **MESSAGES}
            answer = await client.post("/v1/chat/completions", json=body, headers=bearer("sk-b"))
            assert answer.status_code == 403
