# SPDX-License-Identifier: Apache-2.0
"""Requests go where their model is; what the router says of its workers and of itself."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.config.settings import Settings
from rtp_llm.router import proxy
from rtp_llm.router.models import ask_for_models, warn_of_several
from rtp_llm.router.proxy import Proxy
from rtp_llm.router.requested import COMPARED_BYTES, read_requested
from rtp_llm.router.run import server_of
from rtp_llm.testing.router.workers import Case, Fake, play, well


def named(case: Case, *models: str | None) -> None:
    """What each worker is known to have."""
    for worker, name in zip(case.workers.all, models, strict=True):
        worker.models = None if name is None else {name: {"id": name, "object": "model"}}


def test_requests_go_where_their_model_is(caplog: pytest.LogCaptureFixture) -> None:
    async def test(case: Case) -> None:
        named(case, "a", "b")
        for _ in range(3):
            assert await case.ask(b'{"model":"b"}') == (200, b"fine")
        assert case.requests == [0, 3]
        assert await case.ask(b'{"prompt":"x","model":"a"}') == (200, b"fine")
        status, body = await case.ask(b'{"model":"c"}')
        error = json.loads(body)["error"]
        assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert "'a', 'b'" in error["message"]
        status, body = await case.ask(b"{}")
        assert status == 400 and "name one of 'a', 'b'" in json.loads(body)["error"]["message"]
        assert (await case.ask(b"no json"))[0] == 200  # a worker says what is wrong
        case.workers.all[1].healthy = False
        status, body = await case.ask(b'{"model":"b"}')
        assert (status, json.loads(body)["error"]["code"]) == (503, "no_worker")
        warned = warn_of_several(case.workers, frozenset())
        assert warn_of_several(case.workers, warned) == warned
        assert caplog.text.count("have different models") == 1

    play(test, well, well)


def test_one_name_is_not_looked_at() -> None:
    """A worker whose models are not known may have any."""

    async def test(case: Case) -> None:
        named(case, "a", "a")
        assert (await case.ask(b'{"model":"c"}'))[0] == (await case.ask())[0] == 200
        named(case, None, "b")
        assert (await case.ask(b'{"model":"c"}'))[0] == 200
        assert await case.ask(b"", path="/version", method="GET") == (200, b"fine")

    play(test, well, well)


def test_a_model_may_have_several_names(caplog: pytest.LogCaptureFixture) -> None:
    async def test(case: Case) -> None:
        for worker in case.workers.all:
            worker.models = {name: {"id": name} for name in ("a", "b")}
        for body in (b'{"model":"a"}', b'{"model":"b"}', b"{}"):
            assert (await case.ask(body))[0] == 200
        assert sum(case.requests) == 3
        case.workers.all[0].models = {"a": {"id": "a"}}
        before = case.requests
        for _ in range(3):
            assert (await case.ask(b'{"model":"b"}'))[0] == 200
        assert case.requests[1] - before[1] == 3, "only the one that has the name"
        assert (await case.ask(b"{}"))[0] == 200, "of both, it is the same model"
        warn_of_several(case.workers, frozenset())
        assert not caplog.text

    play(test, well, well)


def test_who_surely_has_the_model_is_asked_first() -> None:
    async def test(case: Case) -> None:
        named(case, None, "b", "c")
        assert (await case.ask(b'{"model":"b"}'))[0] == 200
        assert case.requests == [0, 1, 0]
        assert (await case.ask(b'{"model":"d"}'))[0] == 200
        assert case.requests == [1, 1, 0]

    play(test, well, well, well)


def test_the_lists_of_models_are_one() -> None:
    async def test(case: Case) -> None:
        assert await case.ask(b"", path="/v1/models", method="GET") == (200, b"fine")
        named(case, "a", "b")
        status, body = await case.ask(b"", path="/v1/models", method="GET")
        cards = json.loads(body)
        assert status == 200 and [card["id"] for card in cards["data"]] == ["a", "b"]
        status, body = await case.ask(b"", path="/v1/models/b", method="GET")
        assert json.loads(body) == {"id": "b", "object": "model"}
        assert (await case.ask(b"", path="/v1/models/", method="GET"))[1] == json.dumps(
            cards, separators=(",", ":")
        ).encode()
        assert (await case.ask(b"", path="/v1/models/c", method="GET"))[0] == 404

    play(test, well, well)


def test_models_are_learnt_from_workers() -> None:
    async def test(case: Case) -> None:
        (worker,) = case.workers.all
        case.fakes[0]._behave = says_models([{"id": "m", "max_model_len": 5}])
        await ask_for_models(worker, "secret")
        assert worker.models == {"m": {"id": "m", "max_model_len": 5}}
        for wrong in ({"data": 7}, {"data": [7]}, {"data": [{"id": 7}]}):
            case.fakes[0]._behave = says(json.dumps(wrong).encode())
            await ask_for_models(worker, None)
        assert worker.models in ({}, {"m": {"id": "m", "max_model_len": 5}})

    play(test, well)


def says_models(cards: list[Any]) -> Any:
    return says(json.dumps({"object": "list", "data": cards}).encode())


def says(body: bytes) -> Any:
    async def behave(fake: Fake, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()

    return behave


def test_the_router_shows_itself() -> None:
    async def test(case: Case) -> None:
        named(case, "a", "b")
        case.workers.all[1].healthy = False
        host = {"headers": [(b"host", b"router:9999")]}
        status, body = await case.ask(b"", path="/", method="GET", **host)
        text = body.decode()
        assert status == 200 and "router at http://router:9999 (ready)" in text
        assert f"{case.fakes[0].url}  takes requests; 0 open requests; models a" in text
        assert f"{case.fakes[1].url}  takes none; 0 open requests; models b" in text
        await case.ask(b'{"model":"a"}')
        status, body = await case.ask(b"", path="/metrics", method="GET")
        lines = body.decode().splitlines()
        urls = [fake.url for fake in case.fakes]
        for line in (
            f'rtp_llm_router_worker_healthy{{worker="{urls[0]}"}} 1.0',
            f'rtp_llm_router_worker_healthy{{worker="{urls[1]}"}} 0.0',
            f'rtp_llm_router_worker_model{{model="b",worker="{urls[1]}"}} 1.0',
            f'rtp_llm_router_requests_total{{code="200",worker="{urls[0]}"}} 1.0',
            f'rtp_llm_router_request_seconds_count{{worker="{urls[0]}"}} 1.0',
            f'rtp_llm_router_worker_backoff_state{{worker="{urls[0]}"}} 0.0',
            "rtp_llm_router_open_requests 0.0",
        ):
            assert line in lines, body.decode()
        assert case.requests == [1, 0]  # a worker's own are not asked for
        status, body = await case.ask(b"", path="/metrics", method="GET")
        assert b'rtp_llm_router_requests_total{code="200",worker=""} 2.0' in body

    play(test, well, well)


def test_every_metric_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "disaggregation.md").read_text()

    async def test(case: Case) -> None:
        named(case, "a")
        server_of(case.proxy, Settings())
        text = case.proxy.metrics.render().decode()
        found = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
        assert len(found) > 10
        assert "rtp_llm_router_open_connections" in found
        for name in found:
            assert f"`{name}`" in page, name

    play(test, well)


def test_a_router_with_a_key_asks_for_it() -> None:
    async def test(case: Case) -> None:
        case.proxy = Proxy(case.workers, Settings(api_key="secret"))
        for path in ("/metrics", "/v1/models", "/", "/v1/completions"):
            assert (await case.ask(path=path, method="GET"))[0] == 401
        for given in (b"Bearer wrong", b"secret", b"Basic secret"):
            assert (await case.ask(headers=[(b"authorization", given)]))[0] == 401
        assert case.requests == [0]
        assert (await case.ask(headers=[(b"x-api-key", b"wrong")]))[0] == 401
        for header in ((b"authorization", b"Bearer secret"), (b"x-api-key", b"secret")):
            assert (await case.ask(headers=[header])) == (200, b"fine")
        assert (await case.ask(path="/health", method="GET"))[0] == 200

    play(test, well)


def test_browsers_get_the_page_of_a_worker_without_a_key() -> None:
    async def test(case: Case) -> None:
        case.proxy = Proxy(case.workers, Settings(api_key="secret"))
        html = {"headers": [(b"accept", b"text/html,*/*;q=0.8")]}
        assert await case.ask(b"", path="/", method="GET", **html) == (200, b"fine")
        assert await case.ask(b"", path="/page/page.js", method="GET") == (200, b"fine")
        assert case.requests == [2]
        assert (await case.ask(b"", path="/metrics", method="GET", **html))[0] == 401
        assert (await case.ask(path="/page/page.js", method="POST"))[0] == 401
        assert case.requests == [2]

    play(test, well)


def test_a_compressed_body_is_read_and_passed_on_plain() -> None:
    async def test(case: Case) -> None:
        named(case, "a", "b")
        body = gzip.compress(b'{"model":"b"}')
        zipped = [(b"content-encoding", b"gzip")]
        assert await case.ask(body, headers=zipped) == (200, b"fine")
        assert case.requests == [0, 1]
        assert (await case.ask(body, headers=[(b"content-encoding", b"br")]))[0] == 415

    play(test, well, well)


def test_a_foreign_name_is_refused() -> None:
    async def test(case: Case) -> None:
        assert (await case.ask(headers=[(b"host", b"evil.example")]))[0] == 403
        assert (await case.ask(headers=[(b"host", b"127.0.0.1:5")]))[0] == 200
        assert case.requests == [1]

    play(test, well)


def test_a_long_body_is_looked_at_in_part() -> None:
    """No object is made of what is not asked for, and no more of a prompt is compared."""
    body = b'{"messages":[' + b'{"role":"user"},' * 400_000 + b'1],"model":"x"}'
    requested = read_requested(body)
    assert requested.model == "x" and len(requested.prompt) == COMPARED_BYTES
    assert requested.length == len(body) - len(b'{"messages":,"model":"x"}')
    assert read_requested(b'{"model":7,"prompt":"a"}').model is None
    assert not read_requested(b'{"model":"a"').readable


def test_a_very_long_body_is_read_where_its_model_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "LONG_BYTES", 10)
    body = b'{"model":"b","prompt":"x"}'

    async def test(case: Case) -> None:
        named(case, "b", "b")
        monkeypatch.setattr(proxy, "read_requested", lambda body: pytest.fail("it was read"))
        assert (await case.ask(body))[0] == 200
        monkeypatch.setattr(proxy, "read_requested", read_requested)
        named(case, "a", "b")
        assert (await case.ask(body))[0] == 200 and case.requests == [1, 1]

    play(test, well, well)
