# SPDX-License-Identifier: Apache-2.0
"""Who asks for the load in a request gets it with the answer."""

from __future__ import annotations

import json

import pytest

from rtp_llm.engine.messages import EngineStats
from rtp_llm.testing.server.serving import CHAT, PROMPT, fake_engine, run, served

PATHS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": PROMPT,
    "/v1/messages": CHAT | {"max_tokens": 4},
    "/invocations": PROMPT,
}
STATS = EngineStats(kv_used_ratio=0.4, waiting=1)
TEXT = "TEXT named_metrics.kv_cache_usage_perc=0.4, named_metrics.num_requests_waiting=1.0"


@pytest.mark.parametrize("stream", [False, True])
@run
async def test_the_load_comes_with_answers(stream: bool) -> None:
    engine = fake_engine()
    async with served(engine) as server:
        engine.latest_stats = STATS
        for path, body in PATHS.items():
            for wanted in ("TEXT", "text", "JSON", "Json"):
                headers = {"Endpoint-Load-Metrics-Format": wanted}
                answer = await server.client.post(
                    path, json=body | {"stream": stream}, headers=headers
                )
                assert answer.status_code == 200, answer.text
                report = answer.headers["endpoint-load-metrics"]
                if wanted.upper() == "TEXT":
                    assert report == TEXT
                    continue
                kind, _, content = report.partition(" ")
                assert kind == "JSON"
                named = {"kv_cache_usage_perc": 0.4, "num_requests_waiting": 1.0}
                assert json.loads(content) == {"named_metrics": named}


@pytest.mark.parametrize("wanted", ["", "BIN", "TEXT, JSON", "text\t"])
@run
async def test_other_formats_and_other_answers_have_none(wanted: str) -> None:
    async with served() as server:
        headers = {"endpoint-load-metrics-format": wanted}
        answer = await server.client.post("/v1/completions", json=PROMPT, headers=headers)
        assert answer.status_code == 200
        assert ("endpoint-load-metrics" in answer.headers) == (wanted.strip() == "text")
        headers = {"endpoint-load-metrics-format": "TEXT"}
        answer = await server.client.get("/v1/models", headers=headers)
        assert "endpoint-load-metrics" not in answer.headers
        answer = await server.client.post("/v1/completions", json={}, headers=headers)
        assert answer.status_code == 400 and "endpoint-load-metrics" not in answer.headers
        assert "endpoint-load-metrics" not in (await server.complete()).headers
