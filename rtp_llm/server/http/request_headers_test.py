# SPDX-License-Identifier: Apache-2.0
"""Hosts, types, encodings, ids and origins of requests; paths with a slash too many."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import socket
from typing import Any

import httpx
import pytest

from rtp_llm.server.http import request_headers
from rtp_llm.testing.server.serving import (
    CHAT,
    JSON,
    PROMPT,
    TEXT,
    fake_engine,
    listening,
    run,
    served,
)
from rtp_llm.testing.server_processes import parse_metrics

BODY = json.dumps(PROMPT).encode()


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("application/json", True),
        ("Application/JSON; charset=utf-8", True),
        ("application/vnd.api+json", True),
        ("text/plain", False),
        ("application/x-www-form-urlencoded", False),
        ("application/jsonp", False),
        ("multipart/form-data; boundary=json", False),
        (None, False),
    ],
)
@run
async def test_the_body_says_that_it_is_json(given: str | None, taken: bool) -> None:
    async with served() as server:
        headers = {} if given is None else {"Content-Type": given}
        for path in ("/v1/completions", "/v1/completions/"):
            answer = await server.client.post(path, content=BODY, headers=headers)
            assert answer.status_code == (200 if taken else 415)
            if not taken:
                error = answer.json()["error"]
                assert error["code"] == "unsupported_media_type"
                assert "-H 'Content-Type: application/json'" in error["message"]
                assert (given or "missing") in error["message"]
        assert len(server.engine.requests) == (2 if taken else 0)
        answer = await server.client.post("/nowhere", content=BODY, headers=headers)
        assert answer.status_code == 404


@pytest.mark.parametrize(
    ("host", "taken"),
    [
        ("localhost", True),
        ("LOCALHOST:8088", True),
        ("app.localhost", True),
        ("127.0.0.1:1", True),
        ("192.168.1.7", True),
        ("[::1]:8088", True),
        ("server", True),
        ("mine.example:80", True),
        ("evil.example", False),
        ("evil.example:8088", False),
        ("127.0.0.1.evil.example", False),
        ("mine.example.evil.example", False),
        ("[::1].evil.example", False),
    ],
)
@run
async def test_a_server_on_loopback_answers_to_its_names(host: str, taken: bool) -> None:
    """A page can make its own name point to this machine, but not an address or a short name."""
    async with served(allowed_hosts="mine.example, other.example") as server:
        for path in ("/health", "/v1/models"):
            answer = await server.client.get(path, headers={"Host": host})
            assert answer.status_code == (200 if taken else 403)
            assert taken or "--allowed-hosts" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "settings", [{"api_key": "x"}, {"host": "0.0.0.0"}, {"allowed_hosts": "*"}]
)
@run
async def test_others_answer_to_every_name(settings: dict[str, str]) -> None:
    async with served(**settings) as server:
        answer = await server.client.get("/health", headers={"Host": "api.example.com"})
        assert answer.status_code == 200


@run
async def test_gzip() -> None:
    async with served(max_request_bytes=2**20) as server:

        async def post(body: bytes, encoding: str = "gzip") -> httpx.Response:
            headers = {**JSON, "Content-Encoding": encoding}
            return await server.client.post("/v1/completions", content=body, headers=headers)

        assert (await post(gzip.compress(BODY))).json()["choices"][0]["text"] == TEXT
        assert (await post(gzip.compress(BODY.ljust(2**20)), "GZIP")).status_code == 200
        assert (await post(BODY, "identity")).status_code == 200
        broken = [b"", BODY, gzip.compress(BODY)[:-9], gzip.compress(BODY.ljust(2**19))[:200]]
        for body in broken:
            answer = await post(body)
            assert answer.status_code == 400, body
            assert answer.json()["error"]["code"] == "invalid_encoding"
        for encoding in ("br", "zstd", "gzip, gzip", "deflate"):
            answer = await post(b"x", encoding)
            assert answer.status_code == 415 and answer.headers["accept-encoding"] == "gzip"


@run
async def test_a_gzip_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than the limit comes out of it, in pieces between which others have a turn."""
    sizes: list[int] = []
    inflate = request_headers._Gunzip._inflate

    def counted(gunzip: Any) -> bytes:
        data = inflate(gunzip)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(request_headers._Gunzip, "_inflate", counted)
    bomb = gzip.compress(b" " * 2**27)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    limit = 2**21
    async with served(max_request_bytes=limit) as server:
        assert len(bomb) < limit
        task = asyncio.create_task(others())
        headers = {**JSON, "Content-Encoding": "gzip"}
        answer = await server.client.post("/v1/completions", content=bomb, headers=headers)
        task.cancel()
    assert answer.status_code == 413 and answer.json()["error"]["code"] == "request_too_large"
    assert sum(sizes) == limit + 1 and max(sizes) <= 2**18 and turns >= len(sizes)


@run
async def test_a_slash_too_many() -> None:
    async with served() as server:
        models = (await server.client.get("/v1/models")).json()
        for path in ("/v1/models/", "/v1/models//"):
            assert (await server.client.get(path)).json() == models
        assert (await server.client.get("/v1/models/demo/")).status_code == 200
        assert (await server.client.get("/health/")).status_code == 200
        assert (await server.client.get("//")).status_code == 200
        assert (await server.client.post("/v1/chat/completions/", json=CHAT)).status_code == 200


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("abc-123", True),
        ("x" * 128, True),
        ("x" * 129, False),
        ("", False),
        ("a b", False),
        ("ä", False),
        ("a\x7f", False),
    ],
)
@run
async def test_the_id_of_a_request_is_kept(given: str, kept: bool) -> None:
    async with served() as server:
        for path in ("/health", "/v1/chat/completions"):
            headers = {"X-Request-Id": given.encode("latin-1")}
            answer = await server.client.get(path, headers=headers)
            named = answer.headers.get_list("x-request-id")
            assert len(named) == 1
            assert named[0] == given if kept else named[0].startswith("req_")


@run
async def test_pages_of_other_origins() -> None:
    """The browser asks without a key; errors can be read, too."""
    origin = {"Origin": "https://page.example"}
    ask = origin | {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type",
    }
    path = "/v1/chat/completions"
    async with served(api_key="x", cors_origins="https://page.example, https://b") as server:
        answer = await server.client.options(path, headers=ask)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://page.example"
        assert "authorization" in answer.headers["access-control-allow-headers"]
        answer = await server.client.post(path, json=CHAT, headers=origin)
        assert answer.status_code == 401
        assert answer.headers["access-control-allow-origin"] == "https://page.example"
        foreign = {**ask, "Origin": "https://evil.example"}
        answer = await server.client.options(path, headers=foreign)
        assert "access-control-allow-origin" not in answer.headers
    async with served(cors_origins="*") as server:
        answer = await server.client.post(path, json={**CHAT, "stream": True}, headers=origin)
        assert answer.headers["access-control-allow-origin"] == "*"
    async with served() as server:
        answer = await server.client.options(path, headers=ask)
        assert answer.status_code == 405 and "access-control-allow-origin" not in answer.headers


def test_lines_about_bad_requests(caplog: pytest.LogCaptureFixture) -> None:
    """They say whose it was, and a flood of them is counted."""
    with listening(fake_engine()) as url, caplog.at_level(logging.WARNING):
        host, port = url.removeprefix("http://").split(":")
        for _ in range(50):
            with socket.create_connection((host, int(port)), timeout=20) as connection:
                connection.sendall(b"nonsense\r\n\r\n")
                assert connection.recv(4096).startswith(b"HTTP/1.1 400 ")
        scraped = httpx.get(f"{url}/metrics").text
    lines = [line for line in caplog.messages if "no valid HTTP" in line]
    assert 0 < len(lines) <= 20 and all(line.startswith("127.0.0.1: ") for line in lines)
    assert parse_metrics(scraped)['rtp_llm_refused_connections_total{reason="invalid"}'] == 50
