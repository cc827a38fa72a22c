# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import pytest

from rtp_llm.engine.messages import EngineStats
from rtp_llm.testing.server.serving import CHAT, run, served
from rtp_llm.text.tokenizer import Tokenizer


@run
async def test_ping_is_health() -> None:
    async with served() as server:
        for ask in (server.client.get, server.client.post):
            assert (await ask("/ping")).status_code == 200
        server.state.start_draining()
        for ask in (server.client.get, server.client.post):
            assert (await ask("/ping")).status_code == 503


@run
async def test_health_says_how_much_is_loaded() -> None:
    async with served() as server:
        server.engine.ready = None
        server.engine.latest_stats = EngineStats(loaded_bytes=3, bytes_to_load=4)
        answer = await server.client.get("/health")
        assert answer.status_code == 503
        assert answer.json()["status"] == "starting"
        assert answer.json()["loading"] == {"done": 3, "total": 4}
        server.engine.latest_stats = EngineStats()
        assert "loading" not in (await server.client.get("/health")).json()


@run
async def test_load_counts_open_answers() -> None:
    async with served() as server:
        assert (await server.client.get("/load")).json() == {"server_load": 0}

        class Open:
            def cut(self) -> None:
                pass

        server.state.begin_answer(Open())
        assert (await server.client.get("/load")).json() == {"server_load": 1}


@run
async def test_server_info_has_settings_without_secrets() -> None:
    async with served(api_key="secret-key") as server:
        headers = {"Authorization": "Bearer secret-key"}
        assert (await server.client.get("/server_info")).status_code == 401
        answer = await server.client.get("/server_info", headers=headers)
        info = answer.json()
        assert "secret-key" not in answer.text
        assert info["settings"]["api_key"] == "***"
        assert info["settings"]["max_running_requests"] == "256"
        assert info["engine"]["max_model_len"] == server.engine.ready.max_model_len
        assert info["phase"] == "ready"


@run
async def test_tokenizer_info() -> None:
    async with served() as server:
        info = (await server.client.get("/tokenizer_info")).json()
        assert info["chat_template"] == server.state.tokenizer.chat_template
        assert "{%" in info["chat_template"] or "{{" in info["chat_template"]
        assert info["vocab_size"] == server.state.tokenizer.vocab_size
        assert "tokenizer_class" in info


@run
async def test_model_cards() -> None:
    async with served() as server:
        (card,) = (await server.client.get("/v1/models")).json()["data"]
        assert card == (await server.client.get("/v1/models/demo")).json()
        assert card["root"] == server.state.settings.model
        assert card["parent"] is None
        assert card["max_model_len"] == server.engine.ready.max_model_len


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/audio/speech", "Audio is not supported. This server generates text"),
        ("/chat/completions", "Use /v1/chat/completions: a client's base URL ends with /v1"),
        ("/completions/", "Use /v1/completions: a client's base URL ends with /v1"),
        ("/models", "Use /v1/models"),
        ("/responses/resp_1/cancel", "Use /v1/responses/resp_1/cancel: a client's"),
        ("//v1/chat/completions", "Use /v1/chat/completions, with single slashes"),
        ("/v1//responses//resp_1/", "Use /v1/responses/resp_1, with single slashes"),
        ("//chat/completions", "Use /v1/chat/completions: a client's base URL ends with /v1"),
        ("/v1//embeddings", "Use /v1/embeddings, with single slashes"),
        ("/v1/tokenize", "Use /tokenize."),
        ("/completion", "Use /v1/completions"),
        ("/nothing", "GET / lists all of them"),
    ],
)
@run
async def test_what_is_not_here_says_what_is(path: str, words: str) -> None:
    async with served() as server:
        answer = await server.client.post(f"http://test{path}", json={})
        assert answer.status_code == 404
        error = answer.json()["error"]
        assert error["code"] == "unknown_endpoint"
        assert f"POST {path.rstrip('/')}" in error["message"] and words in error["message"]


@run
async def test_the_root_lists_every_endpoint() -> None:
    async with served() as server:
        page = (await server.client.get("/")).text
        paths = (await server.client.get("/openapi.json")).json()["paths"]
        lines = {tuple(line.split()[:2]): line for line in page.splitlines() if line}
        for path, methods in paths.items():
            found = [line for key, line in lines.items() if path in line.split()]
            assert found, path
            assert all(verb.upper() in found[0] for verb in methods)
        assert "curl http://test/v1/chat/completions" in page


@pytest.mark.parametrize("prefix", ["", "/llm"])
@run
async def test_a_proxy_s_prefix_taken_off_or_not(prefix: str) -> None:
    async with served(root_path="/llm", api_key="secret") as server:
        client, keyed = server.client, {"Authorization": "Bearer secret"}
        assert (await client.get(f"{prefix}/health")).status_code == 200
        assert (await client.get(f"{prefix}/v1/models")).status_code == 401
        assert (await client.get(f"{prefix}/v1/models/demo", headers=keyed)).status_code == 200
        answer = await client.post(f"{prefix}/v1/chat/completions", json=CHAT, headers=keyed)
        assert answer.status_code == 200
        document = (await client.get(f"{prefix}/openapi.json", headers=keyed)).json()
        assert document["servers"] == [{"url": "/llm"}] and "/v1/models" in document["paths"]
        assert "href='openapi.json'" in (await client.get(f"{prefix}/docs", headers=keyed)).text
        root = (await client.get(f"{prefix}/", headers=keyed)).text
        assert "curl http://test/llm/v1/chat/completions" in root
        missing = await client.get("/llmama/v1/models", headers=keyed)
        assert missing.status_code == 404


@run
async def test_a_model_without_chat_template_is_asked_for_completions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Tokenizer, "has_chat_template", property(lambda _: False))
    async with served() as server:
        page = (await server.client.get("/")).text
        (line,) = [line for line in page.splitlines() if line.startswith("curl ")]
        assert "/v1/completions" in line and "messages" not in line
        body = json.loads(line.partition("-d '")[2].removesuffix("'"))
        assert (await server.client.post("/v1/completions", json=body)).status_code == 200
