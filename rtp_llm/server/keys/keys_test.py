# SPDX-License-Identifier: Apache-2.0
"""A server with a key file: who gets in, what limits do, what others learn of a key."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from rtp_llm.engine.messages import RequestError
from rtp_llm.server.keys import key_ring
from rtp_llm.server.keys.key_file import digest_of
from rtp_llm.server.keys.quota import Account
from rtp_llm.testing.server.fake_engine import FakeEngine
from rtp_llm.testing.server.keys import bearer, entry, key_file
from rtp_llm.testing.server.serving import (
    CHAT,
    Served,
    events,
    fake_engine,
    listening,
    run,
    served,
)
from rtp_llm.testing.server_processes import parse_metrics

A, B = "sk-a-secret", "sk-b-secret"


async def chat(server: Served, key: str, **body: Any) -> httpx.Response:
    return await server.client.post(
        "/v1/chat/completions", json=CHAT | {"max_tokens": 20} | body, headers=bearer(key)
    )


@pytest.fixture(name="still_clock", autouse=True)
def _still_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a test takes, nothing is refilled."""
    monkeypatch.setattr(key_ring, "Account", partial(Account, clock=lambda: 0.0))


@pytest.fixture(name="always_look", autouse=True)
def _always_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_ring, "CHECK_SECONDS", 0.0)


@run
async def test_without_keys_everybody_is_one_tenant() -> None:
    async with served() as server:
        assert (await server.chat()).status_code == 200
        assert server.engine.requests[0].tenant == ""


@run
async def test_headers_and_both_kinds_of_keys(tmp_path: Path) -> None:
    path = key_file(tmp_path / "keys", entry(A, "a", weight=2), entry(B, "b"))
    async with served(api_key_file=path, api_key="owner") as server:
        get = server.client.get
        assert (await get("/v1/models")).status_code == 401
        assert (await get("/health")).status_code == 200
        for headers in (bearer(A), bearer("owner"), {"x-api-key": B}):
            assert (await get("/v1/models", headers=headers)).status_code == 200
        for headers in (bearer("sk-c"), {"x-api-key": "sk-c"}, {"Authorization": f"Basic {A}"}):
            answer = await get("/v1/models", headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
        await chat(server, A)
        await chat(server, "owner")
        tenants = [(each.tenant, each.tenant_weight) for each in server.engine.requests]
        assert tenants == [("a", 2.0), ("", 1.0)]


@run
async def test_admins_and_models(tmp_path: Path) -> None:
    path = key_file(
        tmp_path / "keys",
        entry(A, "a", models='["other"]'),
        entry(B, "b", models='["demo"]', admin=True),
    )
    async with served(api_key_file=path) as server:
        answer = await chat(server, A)
        assert answer.status_code == 403
        assert answer.json()["error"]["code"] == "model_not_found"
        assert (await chat(server, B)).status_code == 200
        for key, names, status in ((A, [], 403), (B, ["demo"], 200)):
            models = (await server.client.get("/v1/models", headers=bearer(key))).json()["data"]
            assert [model["id"] for model in models] == names
            card = await server.client.get("/v1/models/demo", headers=bearer(key))
            assert card.status_code == status
        for admins_only in ("/metrics", "/server_info"):
            answer = await server.client.get(admins_only, headers=bearer(A))
            assert answer.status_code == 403
            assert "admin = true" in answer.json()["error"]["message"]
            assert (await server.client.get(admins_only, headers=bearer(B))).status_code == 200


@run
async def test_only_admins_are_more_urgent_than_others(tmp_path: Path) -> None:
    path = key_file(tmp_path / "keys", entry(A, "a"), entry(B, "b", admin=True))
    async with served(api_key_file=path) as server:
        for key, priority, status in ((A, 0, 200), (A, 5, 200), (A, -1, 403), (B, -1, 200)):
            answer = await chat(server, key, priority=priority)
            assert answer.status_code == status
        assert len(server.engine.requests) == 3
        refusal = await chat(server, A, priority=-1, stream=True)
        assert refusal.json()["error"]["code"] == "admin_key_required"


@run
async def test_limits_show_in_every_answer(tmp_path: Path) -> None:
    path = key_file(
        tmp_path / "keys",
        entry(A, "a", requests_per_minute=3, tokens_per_minute=200),
        entry(B, "b", admin=True),
    )
    async with served(api_key_file=path) as server:
        answer = await chat(server, A, stream=True, stream_options={"include_usage": True})
        first = events(answer.text)[-2]["usage"]["completion_tokens"]
        assert answer.headers["x-ratelimit-limit-requests"] == "3"
        assert answer.headers["x-ratelimit-remaining-requests"] == "2"
        used = sum(len(each.prompt_token_ids) for each in server.engine.requests)
        assert int(answer.headers["x-ratelimit-remaining-tokens"]) == 200 - used - 20
        assert (await chat(server, A, temperature=-1)).status_code == 400
        answer = await chat(server, A, max_tokens=3)
        assert answer.status_code == 200
        answer = await chat(server, A)
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "20"
        assert answer.headers["x-ratelimit-remaining-requests"] == "0"
        answer = await server.client.get("/version", headers=bearer(A))
        assert answer.headers["x-ratelimit-limit-tokens"] == "200"
        page = (await server.client.get("/metrics", headers=bearer(B))).text
        metrics = parse_metrics(page)
        assert metrics['rtp_llm_key_requests_total{key="a"}'] == 3
        assert metrics['rtp_llm_key_refused_requests_total{key="a",limit="requests"}'] == 1
        assert metrics['rtp_llm_key_completion_tokens_total{key="a"}'] == first + 3
        assert metrics['rtp_llm_key_open_requests{key="a"}'] == 0
        assert A not in page and digest_of(A.encode()).hex() not in page


def remaining(answer: httpx.Response) -> int:
    return int(answer.headers["x-ratelimit-remaining-tokens"])


@run
async def test_what_was_not_used_is_given_back(tmp_path: Path) -> None:
    path = key_file(tmp_path / "keys", entry(A, "a", tokens_per_minute=400))
    async with served(api_key_file=path) as server:

        async def left() -> int:
            return remaining(await server.client.get("/version", headers=bearer(A)))

        await chat(server, A, max_tokens=150)
        used = len(server.engine.requests[0].prompt_token_ids) + 11
        assert 400 - used - 30 <= await left() <= 400 - 11
        before = await left()
        server.engine.refuse = RequestError("queue_full", "full")
        assert (await chat(server, A, max_tokens=150)).status_code == 429
        assert await left() >= before, "the engine did not even take it"
        server.engine.refuse = None
        assert (await chat(server, A, max_tokens=500)).status_code == 400, "beyond the model"
        assert await left() >= before
        await chat(server, A)
        answer = await chat(server, A, max_tokens=None)  # up to the model's 256
        assert answer.status_code == 200


def test_a_client_that_goes_away_pays_for_what_it_got(tmp_path: Path) -> None:
    engine = fake_engine("word " * 200, step_seconds=0.01)
    path = key_file(tmp_path / "keys", entry(A, "a", tokens_per_minute=1000, concurrency=1))
    with listening(engine, api_key_file=path) as url, httpx.Client() as client:
        body = CHAT | {"max_tokens": 200, "stream": True}
        ask: dict[str, Any] = {
            "url": f"{url}/v1/chat/completions",
            "json": body,
            "headers": bearer(A),
        }
        with client.stream("POST", **ask) as answer:
            next(answer.iter_bytes())
            before = remaining(answer)
            assert client.post(**ask).status_code == 429, "one at a time"
        for _ in range(500):
            after = remaining(client.get(f"{url}/version", headers=bearer(A)))
            if after > before + 100:
                break
        assert before + 100 < after < 1000
        with client.stream("POST", **ask) as answer:
            assert answer.status_code == 200


@run
async def test_the_file_is_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys"
    key_file(path, entry(A, "a", requests_per_minute=10))
    async with served(api_key_file=str(path)) as server:
        assert (await chat(server, A)).headers["x-ratelimit-remaining-requests"] == "9"
        new = tmp_path / "new"
        key_file(new, entry(A, "a", requests_per_minute=20), entry(B, "b"))
        new.rename(path)
        assert (await chat(server, A)).headers["x-ratelimit-remaining-requests"] == "18"
        assert (await chat(server, B)).status_code == 200
        with caplog.at_level(logging.ERROR):
            for bad in ("[[keys", "", entry(A, "a", weight=-1)):
                caplog.clear()
                path.write_text(bad)
                assert (await chat(server, B)).status_code == 200
                assert (await chat(server, B)).status_code == 200
                (line,) = caplog.messages
                assert "the keys stay as they were" in line
            caplog.clear()
            path.unlink()
            assert (await chat(server, B)).status_code == 200
            assert "cannot read" in caplog.messages[0]
        key_file(path, entry(A, "a"))
        assert (await chat(server, B)).status_code == 401
        assert "x-ratelimit-limit-requests" not in (await chat(server, A)).headers


@run
async def test_names_and_never_keys_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = key_file(tmp_path / "keys", entry(A, "a"))
    async with served(api_key_file=path) as server:
        object.__setattr__(server.state.settings, "access_log", True)
        with caplog.at_level(logging.DEBUG):
            await chat(server, A)
            await chat(server, B)
            await server.client.get(f"/{A}/no", headers=bearer(A) | {"x-api-key": A})
    fields = [record.fields for record in caplog.records if hasattr(record, "fields")]
    assert [each.get("key") for each in fields] == ["a", None, "a"]
    assert all(A not in str(each) for each in fields[:2])
    assert digest_of(A.encode()).hex() not in caplog.text


@run
async def test_a_flood_of_one_key_leaves_its_places_only(tmp_path: Path) -> None:
    engine: FakeEngine = fake_engine(step_seconds=0.02)
    path = key_file(tmp_path / "keys", entry(A, "a", concurrency=3), entry(B, "b"))
    async with served(engine, api_key_file=path) as server:
        flood = [asyncio.create_task(chat(server, A)) for _ in range(20)]
        await asyncio.sleep(0.1)
        assert (await chat(server, B)).status_code == 200
        codes = sorted([(await each).status_code for each in flood])
        assert codes == [200] * 3 + [429] * 17


@run
async def test_inputs_of_embeddings_are_paid_for(tmp_path: Path) -> None:
    """Each token of each input, once; a request beyond the limit reaches no engine."""
    path = key_file(tmp_path / "keys", entry(A, "a", tokens_per_minute=200))
    engine = fake_engine()
    async with served(engine, api_key_file=path) as server:

        async def embed(inputs: list[list[int]], **body: Any) -> httpx.Response:
            body = {"input": inputs, **body}
            return await server.client.post("/v1/embeddings", json=body, headers=bearer(A))

        answer = await embed([[5] * 30, [6] * 20])
        assert answer.status_code == 200 and remaining(answer) == 150
        assert (await embed([[5] * 400])).status_code == 400
        assert (await embed([[5]], priority=-1)).status_code == 403
        assert (await embed([[5] * 100] * 3)).status_code == 429
        assert len(engine.batches) == 1
        assert (await server.client.post("/v1/embeddings", json={"input": "a"})).status_code == 401
