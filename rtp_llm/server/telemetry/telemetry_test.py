# SPDX-License-Identifier: Apache-2.0
"""Spans and metrics that a collector gets of a server's requests."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import subprocess
import sys
import time
from typing import Any

import httpx
import pytest

from rtp_llm.config.options import SettingsError
from rtp_llm.config.settings import Settings
from rtp_llm.engine.messages import RequestError
from rtp_llm.server.telemetry import otlp
from rtp_llm.server.telemetry.finished import FinishedRequest
from rtp_llm.server.telemetry.setup import check_telemetry, start_telemetry
from rtp_llm.testing.server.collector import Collector, attributes, collecting
from rtp_llm.testing.server.serving import CHAT, Served, demo_folder, fake_engine, run, served

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SECRET = "a question that nobody else may read"


def sent_by(collector: Collector) -> dict[str, Any]:
    return {
        "otlp_traces_endpoint": collector.url,
        "otlp_metrics_endpoint": f"{collector.url}/v1/metrics",
    }


ASKED = {"max_tokens": 50, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 3, "n": 2}


@run
async def test_a_chat_becomes_a_span_and_measurements() -> None:
    with collecting() as collector:
        async with served(fake_engine(step_seconds=0.002), **sent_by(collector)) as server:
            answer = await server.client.post(
                "/v1/chat/completions",
                json=CHAT | ASKED | {"messages": [{"role": "user", "content": SECRET}]},
                headers={"traceparent": f"00-{TRACE}-{PARENT}-01"},
            )
            await ended(server)
    check_span(collector.spans, answer)
    assert collector.resource["service.name"] == "rtp-llm"
    check_metrics(collector)
    everything = b"".join(collector.bodies)
    assert SECRET.encode() not in everything and b"Once upon" not in everything


async def ended(server: Served) -> None:
    """All of its telemetry is exported."""
    assert server.state.telemetry is not None
    await asyncio.to_thread(server.state.telemetry.close)


def check_span(spans: list[Any], answer: httpx.Response) -> None:
    (span,) = spans
    assert span.name == "chat demo" and span.kind == span.SPAN_KIND_SERVER
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert 0 < span.end_time_unix_nano - span.start_time_unix_nano < 60e9
    assert abs(span.end_time_unix_nano - time.time_ns()) < 60e9
    assert span.status.code == span.status.STATUS_CODE_UNSET
    found = attributes(span)
    latency = {name: found.pop(name) for name in list(found) if ".latency." in name}
    assert sorted(name.rpartition(".")[2] for name in latency) == [
        *("e2e", "time_in_model_decode", "time_in_model_prefill"),
        *("time_in_queue", "time_to_first_token"),
    ]
    assert 0 < latency["gen_ai.latency.time_to_first_token"] < latency["gen_ai.latency.e2e"]
    usage = answer.json()["usage"]
    assert found == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "rtp_llm",
        "gen_ai.request.model": "demo",
        "gen_ai.response.model": "demo",
        **{f"gen_ai.request.{name}": value for name, value in ASKED.items() if name != "n"},
        "gen_ai.request.choice.count": 2,
        "gen_ai.response.finish_reasons": ["stop", "stop"],
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
        "gen_ai.usage.prompt_tokens": usage["prompt_tokens"],
        "gen_ai.usage.completion_tokens": usage["completion_tokens"],
        "gen_ai.usage.cache_read.input_tokens": 0,
        "http.response.status_code": 200,
        "rtp_llm.request_id": answer.headers["x-request-id"],
    }


def check_metrics(collector: Collector) -> None:
    assert sorted(collector.metrics) == [
        "gen_ai.server.request.duration",
        "gen_ai.server.time_per_output_token",
        "gen_ai.server.time_to_first_token",
    ]
    for metric in collector.metrics.values():
        (point,) = metric.histogram.data_points
        assert metric.unit == "s" and point.count == 1 and point.sum > 0
        assert attributes(point) == {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "rtp_llm",
            "gen_ai.request.model": "demo",
            "gen_ai.response.model": "demo",
        }
    (point,) = collector.metrics["gen_ai.server.time_to_first_token"].histogram.data_points
    assert list(point.explicit_bounds)[:3] == [0.001, 0.005, 0.01]


@run
async def test_what_goes_wrong_has_a_type() -> None:
    with collecting() as collector:
        engine = fake_engine()
        async with served(engine, **sent_by(collector)) as server:
            await server.chat(temperature=-1)
            engine.refuse = RequestError("queue_full", "full")
            await server.complete()
            engine.refuse = None
            await server.post("/tokenize", prompt="x")
            await server.client.get("/v1/models")
            await ended(server)
    first, second = collector.spans
    assert attributes(first)["error.type"] == "400" and first.name == "chat demo"
    assert attributes(second)["error.type"] == "queue_full"
    assert second.name == "text_completion demo"
    assert second.status.code == second.status.STATUS_CODE_ERROR
    (metric,) = collector.metrics.values()
    kinds = {attributes(point)["error.type"] for point in metric.histogram.data_points}
    assert kinds == {"400", "queue_full"}


@run
async def test_an_unsampled_trace_is_not_exported() -> None:
    with collecting() as collector:
        async with served(otlp_traces_endpoint=collector.url) as server:
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
            await server.client.post("/v1/chat/completions", json=CHAT, headers=headers)
            await server.client.post(
                "/v1/chat/completions", json=CHAT, headers={"traceparent": "nonsense"}
            )
            await ended(server)
    assert len(collector.spans) == 1 and not collector.spans[0].parent_span_id
    assert collector.metrics == {}


@run
async def test_a_collector_that_is_away_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "EXPORT_SECONDS", 0.2)
    monkeypatch.setattr(otlp, "MAX_SPANS", 600)
    async with served(otlp_traces_endpoint="http://127.0.0.1:9") as server:
        for _ in range(20):
            assert (await server.chat(max_tokens=1)).status_code == 200
        telemetry = server.state.telemetry
        assert telemetry is not None
        await asyncio.wait_for(asyncio.to_thread(telemetry.close), 60)


def test_a_collector_that_never_answers_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Spans and metrics together have CLOSE_SECONDS."""
    monkeypatch.setattr(otlp, "EXPORT_SECONDS", 600.0)
    monkeypatch.setattr(otlp, "CLOSE_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        telemetry = start_telemetry(Settings(otlp_traces_endpoint=url, otlp_metrics_endpoint=url))
        assert telemetry is not None
        telemetry.record(
            FinishedRequest("/v1/completions", "demo", 200, 1.0, "req_1", "", {}, None)
        )
        began = time.monotonic()
        telemetry.close()
        assert time.monotonic() - began < 60
    assert "were not taken in 0.1 s" in caplog.text


def test_refused_where_it_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def settings(url: str) -> Settings:
        return Settings(model=str(demo_folder()), otlp_traces_endpoint=url)

    check_telemetry(settings("http://collector:4318"))
    for url in ("collector:4318", "grpc://collector:4317", "http://", ""):
        with pytest.raises(SettingsError, match=r"otlp_traces_endpoint: .* is no http://"):
            check_telemetry(settings(url))
    find = importlib.util.find_spec

    def without_sdk(name: str) -> object:
        return None if name == "opentelemetry.sdk" else find(name)

    monkeypatch.setattr(importlib.util, "find_spec", without_sdk)
    with pytest.raises(SettingsError) as refusal:
        check_telemetry(settings("http://collector:4318"))
    line = "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
    assert line in str(refusal.value) and "--otlp-traces-endpoint" in str(refusal.value)
    assert start_telemetry(Settings(model=str(demo_folder()))) is None


def test_nothing_is_imported_unless_asked_for() -> None:
    code = (
        "import sys; import rtp_llm.server.app; "
        "sys.exit('opentelemetry.sdk' in sys.modules or 'opentelemetry.exporter' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
