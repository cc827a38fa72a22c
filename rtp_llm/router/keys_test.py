# SPDX-License-Identifier: Apache-2.0
"""Keys and quotas of workers, seen through a router: both are each worker's own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from rtp_llm.config.settings import Settings
from rtp_llm.router.proxy import Proxy
from rtp_llm.router.workers import Workers
from rtp_llm.server.keys.key_file import new_key
from rtp_llm.testing.server.serving import CHAT, fake_engine, listening


def test_the_key_goes_through_and_limits_are_those_of_each_worker(tmp_path: Path) -> None:
    key, entry = new_key("a")
    path = tmp_path / "keys.toml"
    path.touch(0o600)
    path.write_text(entry + "requests_per_minute = 2\n")
    with (
        listening(fake_engine(), api_key_file=str(path)) as first,
        listening(fake_engine(), api_key_file=str(path)) as second,
    ):
        answers = asyncio.run(ask([first, second], key))
    assert [answer.status_code for answer in answers] == [401, *[200] * 4, 429]
    refusal = answers[-1]
    assert int(refusal.headers["retry-after"]) > 20
    assert refusal.headers["x-ratelimit-limit-requests"] == "2"
    assert refusal.headers["x-ratelimit-remaining-requests"] == "0"
    assert refusal.json()["error"]["code"] == "rate_limit_exceeded"


async def ask(urls: list[str], key: str) -> list[httpx.Response]:
    """Once with a wrong key, then five times with ``key``, in both headers that may have it."""
    workers = Workers(urls)
    for worker in workers.all:
        worker.healthy = True
    transport = httpx.ASGITransport(Proxy(workers, Settings(answer_timeout=60)))
    headers = [{"Authorization": "Bearer wrong"}, *[{"x-api-key": key}] * 2]
    headers += [{"Authorization": f"Bearer {key}"}] * 3
    async with httpx.AsyncClient(transport=transport, base_url="http://router") as client:
        return [
            await client.post("/v1/chat/completions", json=CHAT, headers=each) for each in headers
        ]
