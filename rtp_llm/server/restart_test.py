# SPDX-License-Identifier: Apache-2.0
"""A server whose engine dies and is started again, as its clients and probes see it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from rtp_llm.testing.engine import scripted_engine as script
from rtp_llm.testing.engine.allowed_steps import AllowedSteps
from rtp_llm.testing.server.serving import CHAT, fake_engine, run, served, wait_for
from rtp_llm.testing.server_processes import (
    TIMEOUT,
    Process,
    Stream,
    engines,
    open_descriptors,
    parse_metrics,
    process,
    read_metrics,
    spares,
    status,
)

STREAMS = 50


@pytest.fixture(name="steps")
def _steps(tmp_path: Path) -> AllowedSteps:
    """One of each engine process; those that begin later wait until the test allows more."""
    return AllowedSteps(tmp_path, 1)


def scripted(steps: AllowedSteps, folder: Path, **more: str) -> dict[str, Any]:
    """The environment of a server that makes its files in `folder`."""
    return {"FAKE_ENGINE": "scripted", "TMPDIR": str(folder), **steps.environment, **more}


def kill_and_wait(server: Process, url: str) -> list[str]:
    """The phases that its probes saw from the engine's end until its spare served."""
    phases = []
    (engine,) = engines(server.process.pid)
    (spare,) = spares(server.process.pid)
    os.kill(spare, signal.SIGSTOP)  # it would be faster than the probes
    before = read_metrics(url)["rtp_llm_engine_restarts_total"]
    os.kill(engine, signal.SIGKILL)
    wait_for(lambda: read_metrics(url)["rtp_llm_engine_restarts_total"] > before, TIMEOUT)
    while (phase := status(url)) != "ready":
        phases.append(phase)
        assert httpx.get(f"{url}/liveness").status_code == 200
        if len(phases) == 1:
            refused = httpx.post(f"{url}/v1/chat/completions", json=CHAT)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert refused.json()["error"]["code"] == "engine_restarting"
            os.kill(spare, signal.SIGCONT)
    assert not Path(f"/proc/{engine}").exists()
    assert engines(server.process.pid) == [spare]
    return phases


def test_a_killed_engine_under_fifty_streams(steps: AllowedSteps, socket_folder: Path) -> None:
    """Half of them had output: they fail. The others are answered by the next process."""
    shared = set(os.listdir("/dev/shm"))
    with process(**scripted(steps, socket_folder, FAKE_SPARE="1")) as server:
        url = server.url
        wait_for_spare(server)
        before = len(os.listdir(socket_folder))
        begun = [Stream(url, begun=False, max_tokens=40) for _ in range(STREAMS // 2)]
        wait_for(lambda: read_metrics(url)["rtp_llm_running_sequences"] == STREAMS // 2, TIMEOUT)
        steps.allow(2)
        wait_for(lambda: all("data: " in stream.text for stream in begun), TIMEOUT)
        waiting = [Stream(url, begun=False, max_tokens=40) for _ in range(STREAMS // 2)]
        wait_for(lambda: read_metrics(url)["rtp_llm_running_sequences"] == STREAMS, TIMEOUT)
        assert set(kill_and_wait(server, url)) == {"engine_restarting"}
        steps.allow_all()
        for stream in begun:
            assert stream.events()[-1]["error"]["code"] == "engine_dead"
        for stream in waiting:
            assert stream.events()[-1] == "[DONE]"
        assert Stream(url, max_tokens=3).events()[-1] == "[DONE]"
        assert len(engines(server.process.pid)) == 1
        assert read_metrics(url)["rtp_llm_replayed_requests_total"] == STREAMS // 2
        wait_for_spare(server)
        descriptors = open_descriptors(server)
        poison(url)
        assert not spares(server.process.pid)  # no restart is left
        assert len(os.listdir(socket_folder)) == before - 1
        wait_for(lambda: open_descriptors(server) <= descriptors, TIMEOUT)
        server.process.send_signal(signal.SIGTERM)
        assert server.exit_code() == 0
    assert not os.listdir(socket_folder)
    assert set(os.listdir("/dev/shm")) <= shared


def wait_for_spare(server: Process) -> None:
    wait_for(lambda: len(spares(server.process.pid)) == 1, TIMEOUT)


def poison(url: str) -> None:
    """A request that ends engines is computed twice: it ends two of them and no more."""
    before = read_metrics(url)
    body = {"prompt": [script.KILL], "max_tokens": 4}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=TIMEOUT)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "engine_dead"
    wait_for(lambda: status(url) == "ready", TIMEOUT)
    after = read_metrics(url)
    for name, more in (("engine_restarts", 2), ("replayed_requests", 1)):
        assert after[f"rtp_llm_{name}_total"] == before[f"rtp_llm_{name}_total"] + more
    assert httpx.post(f"{url}/v1/completions", json={**body, "prompt": [7]}).status_code == 200


def test_a_dense_rank_comes_back_and_a_killed_server_leaves_nothing(
    steps: AllowedSteps, tmp_path: Path
) -> None:
    """The server is ready all the time."""
    steps.allow_all()
    folder = tmp_path / "files"
    folder.mkdir()
    with process("--data-parallel-size", "2", **scripted(steps, folder)) as server:
        url = server.url
        ranks = engines(server.process.pid)
        os.kill(ranks[1], signal.SIGKILL)
        wait_for(lambda: read_metrics(url)["rtp_llm_engine_ranks_up"] == 1, TIMEOUT)
        body = {"prompt": [7], "max_tokens": 4}
        while (found := read_metrics(url))["rtp_llm_engine_ranks_up"] == 1:
            assert status(url) == "ready" and found["rtp_llm_ready"] == 1
            assert httpx.post(f"{url}/v1/completions", json=body).status_code == 200
        assert found["rtp_llm_engine_ranks_up"] == found["rtp_llm_engine_ranks"] == 2
        assert ranks[0] in engines(server.process.pid)
        ranks = engines(server.process.pid)
        assert len(ranks) == 2 and os.listdir(folder)
        server.process.kill()
        server.process.wait()
        wait_for(lambda: not any(running(engine) for engine in ranks), TIMEOUT)
        assert not os.listdir(folder)


def running(pid: int) -> bool:
    """It may be nobody's child any more, and wait for an init that collects it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@run
async def test_metrics_and_phases_of_a_restart() -> None:
    async with served(fake_engine()) as server:
        server.engine.restarting = True
        server.engine.restarts.total, server.engine.restarts.replayed = 2, 7
        health = await server.client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "engine_restarting")
        assert "is being restarted" in health.json()["reason"]
        assert health.headers["retry-after"] == "1"
        assert (await server.client.get("/liveness")).status_code == 200
        values = parse_metrics((await server.client.get("/metrics")).text)
        assert values["rtp_llm_engine_restarts_total"] == 2
        assert values["rtp_llm_replayed_requests_total"] == 7
        assert values["rtp_llm_engine_ranks"] == 1 and values["rtp_llm_engine_ranks_up"] == 0
        server.state.start_draining()
        assert server.state.phase == "draining" and not server.engine.restarts.allowed
