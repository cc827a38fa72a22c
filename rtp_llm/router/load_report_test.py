# SPDX-License-Identifier: Apache-2.0
"""A client of the router gets the load report of the worker that answered."""

from __future__ import annotations

import asyncio

import httpx

from rtp_llm.config.settings import Settings
from rtp_llm.router.proxy import Proxy
from rtp_llm.router.workers import Workers
from rtp_llm.testing.server.serving import PROMPT, fake_engine, listening


def test_the_load_report_of_the_worker_is_passed_on() -> None:
    async def ask(url: str) -> httpx.Response:
        workers = Workers([url])
        workers.all[0].healthy = True
        transport = httpx.ASGITransport(Proxy(workers, Settings(answer_timeout=60)))
        headers = {"endpoint-load-metrics-format": "text"}
        async with httpx.AsyncClient(transport=transport, base_url="http://here:8088") as client:
            return await client.post("/v1/completions", json=PROMPT, headers=headers)

    with listening(fake_engine()) as url:
        answer = asyncio.run(ask(url))
    assert answer.status_code == 200, answer.text
    assert answer.headers["endpoint-load-metrics"].startswith(
        "TEXT named_metrics.kv_cache_usage_perc="
    )
