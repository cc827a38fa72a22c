# SPDX-License-Identifier: Apache-2.0
"""A client that never reads its stream: nothing is formatted for it, and then it is cut off."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import httpx
import pytest
import uvloop

from rtp_llm.server.generation.generation import Generation
from rtp_llm.testing.server.fake_engine import FakeEngine, ready_message
from rtp_llm.testing.server.serving import PROMPT, demo_tokenizer, events, listening, wait_for
from rtp_llm.testing.server_processes import parse_metrics, read_metrics

LONG = 2 * 10**5  # tokens
STALL = 3.0  # seconds
MOST = 4  # deltas that are made before it is seen that nobody takes them


def ask_and_never_read(url: str, **fields: Any) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((host, int(port)))
    body = json.dumps({**PROMPT, "stream": True, "ignore_eos": True, **fields}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


@pytest.mark.parametrize("prompt", ["one", ["two", "prompts"]], ids=["one", "two"])
def test_it_is_cut_off_and_others_go_on(prompt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With several prompts, too, whose deltas come from tasks of their own."""
    said = demo_tokenizer().encode("Once upon", add_special_tokens=False) * (LONG // 2)
    engine = FakeEngine(lambda request, index: said)
    engine.next_ready = ready_message(max_model_len=2 * LONG)
    formatted: list[int] = []
    run = Generation._run

    async def counted(generation: Generation, job: Any) -> Any:
        async for delta in run(generation, job):
            if job.params.max_tokens == LONG:
                formatted.append(delta.choice)
            yield delta

    monkeypatch.setattr(Generation, "_run", counted)
    settings = {"stream_stall_timeout": STALL}
    with listening(engine, uvloop.new_event_loop, **settings) as url:
        with ask_and_never_read(url, prompt=prompt, max_tokens=LONG, logprobs=20, n=6):
            wait_for(lambda: is_still(formatted, engine), 60)
            before, steps = len(formatted), engine.steps
            body = {**PROMPT, "stream": True, "ignore_eos": True, "max_tokens": 200}
            other = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
            assert len(events(other.text)) > 100 and other.text.endswith("[DONE]\n\n")
            assert engine.steps >= steps + 200 and len(formatted) <= before + MOST
            wait_for(lambda: not engine.streams, 60)
            assert len(formatted) <= before + MOST
        many = 1 if isinstance(prompt, str) else len(prompt)
        assert len(engine.aborted) == many
        wait_for(lambda: read_metrics(url)["rtp_llm_open_connections"] == 1, 20)
        scraped = httpx.get(f"{url}/metrics").text
    assert parse_metrics(scraped)['rtp_llm_refused_connections_total{reason="stalled"}'] == 1
    assert parse_metrics(scraped)["rtp_llm_open_requests"] == 0


def test_one_that_makes_little_is_cut_off_too() -> None:
    """As one that is preempted again and again: the transport's buffer never fills."""
    said = demo_tokenizer().encode("Once upon", add_special_tokens=False) * LONG
    engine = FakeEngine(lambda request, index: said)
    engine.allowed_steps = lambda: 200
    with listening(engine, uvloop.new_event_loop, stream_stall_timeout=STALL) as url:
        with ask_and_never_read(url, max_tokens=250):
            wait_for(lambda: engine.steps == 200, 60)
            wait_for(lambda: not engine.streams, 60)
        scraped = read_metrics(url)
    assert scraped['rtp_llm_refused_connections_total{reason="stalled"}'] == 1
    assert scraped["rtp_llm_open_requests"] == 0


def is_still(formatted: list[int], engine: FakeEngine) -> bool:
    """Some were made, and no more are, though the engine goes on."""
    before, steps = len(formatted), engine.steps
    time.sleep(0.5)
    wait_for(lambda: engine.steps > steps + 20 or not engine.streams, 60)
    return 0 < before == len(formatted)
