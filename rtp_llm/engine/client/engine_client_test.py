# SPDX-License-Identifier: Apache-2.0
"""Tests of the client against a process that follows a script instead of a model."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rtp_llm.config.settings import Settings
from rtp_llm.engine.client import liveness
from rtp_llm.engine.client.engine_client import EngineClient
from rtp_llm.engine.messages import EngineDeadError, EngineStartError, RequestError
from rtp_llm.testing.engine import scripted_engine as script
from rtp_llm.testing.engine.allowed_steps import AllowedSteps
from rtp_llm.testing.engine.client_calls import collect, eventually, request
from rtp_llm.worker.ranks import stopped

pytestmark = pytest.mark.usefixtures("forked_processes")

MODULE = "rtp_llm.testing.engine.scripted_engine"


def serve(test: Callable[[EngineClient], Awaitable[None]], **settings: object) -> None:
    async def run() -> None:
        client = EngineClient(MODULE)
        await client.start(Settings(model="scripted", **settings))
        try:
            await asyncio.wait_for(test(client), 60)
        finally:
            await client.close()

    asyncio.run(run())


@pytest.fixture
def steps(tmp_path, monkeypatch):
    """None, until the test allows some."""
    made = AllowedSteps(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


def test_streams_run_side_by_side_and_end(steps):
    async def test(client):
        sizes = []
        client.on_step = lambda *numbers: sizes.append(numbers)
        jobs = [collect(client.generate(request(client, 100 * i, n=2))) for i in range(1, 9)]
        answers = asyncio.gather(*jobs)
        await eventually(lambda: client.latest_stats.running == 16)
        steps.allow_all()
        for number, tokens in enumerate(await answers, 1):
            expected = list(range(100 * number, 100 * number + 8))
            assert tokens == {0: expected, 1: expected}
        prompts = 8 * len(request(client, 1).prompt_token_ids)
        assert sizes == [(16, 16, 16 + prompts)] + [(16, 16, 16)] * 7
        assert client.alive

    serve(test)


def test_a_slow_reader_gets_several_steps_in_one_delta():
    async def test(client):
        stream = client.generate(request(client, 7, max_tokens=50))
        await eventually(lambda: stream.finished)
        deltas = [delta async for delta in stream]
        assert [delta.token_ids for delta in deltas] == [list(range(7, 57))]
        assert deltas[0].finish_reason == "length"

    serve(test)


def test_refusals_reach_only_their_request():
    async def test(client):
        other = asyncio.ensure_future(collect(client.generate(request(client, 5))))
        for token, kind in ((script.REFUSE, "invalid"), (script.QUEUE_FULL, "queue_full")):
            with pytest.raises(RequestError, match="by the script") as caught:
                await collect(client.generate(request(client, token)))
            assert caught.value.kind == kind
        assert len((await other)[0]) == 8

    serve(test)


def test_admission_is_bounded_without_asking_the_engine():
    async def test(client):
        streams = [client.generate(request(client, 1, n=2, max_tokens=900)) for _ in range(3)]
        with pytest.raises(RequestError, match="6 sequences are running") as caught:
            client.generate(request(client, 1, n=2))
        assert caught.value.kind == "queue_full"
        await streams[0].aclose()
        await client.generate(request(client, 1, n=2, max_tokens=1)).aclose()

    serve(test, max_running_requests=4, max_queued_requests=3)


@pytest.mark.parametrize("how", ["close", "cancel", "drop", "break"])
def test_a_reader_that_goes_away_aborts_its_request(how):
    async def test(client):
        stream = client.generate(request(client, 1, n=3, max_tokens=10**6))
        await anext(stream)
        await eventually(lambda: client.latest_stats.running == 3)
        if how == "close":
            await stream.aclose()
        elif how == "cancel":
            job = asyncio.ensure_future(collect(stream))
            await asyncio.sleep(0.05)
            job.cancel()
        elif how == "break":
            async for _ in stream:
                break
        del stream
        job = None
        await eventually(lambda: client.latest_stats.running == 0)

    serve(test)


def test_abort_ends_the_stream_with_its_reason():
    async def test(client):
        job = request(client, 1, n=2, max_tokens=10**6)
        stream = client.generate(job)
        await anext(stream)
        client.abort(job.request_id, 1)
        reasons = {}
        async for delta in stream:
            reasons[delta.index] = delta.finish_reason
            if reasons.get(1) and not reasons.get(0) and delta.index == 0:
                client.abort(job.request_id)
        assert reasons == {0: "abort", 1: "abort"}
        await eventually(lambda: client.latest_stats.running == 0)

    serve(test)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (script.KILL, "ended by signal SIGABRT"),
        (script.RAISE, "ZeroDivisionError: by the script"),
        (script.STOP_BEATING, "no sign of life for 3 s"),
        (script.STOP_BEATING, f"the engine process {stopped.STOPPED}"),
        (script.SLEEP, "a step hangs: it has taken longer than step_timeout=2 s"),
    ],
)
def test_every_waiting_request_learns_of_the_engines_death(command, words, monkeypatch):
    if "no sign" in words:  # as one that is stopped in a way that the kernel does not tell
        monkeypatch.setattr(liveness, "GONE_SECONDS", 3.0)
        monkeypatch.setattr(stopped, "STOPPED_SECONDS", 600.0)

    async def test(client):
        jobs = [collect(client.generate(request(client, 1, max_tokens=10**6))) for _ in range(3)]
        jobs = [asyncio.ensure_future(job) for job in jobs]
        await eventually(lambda: client.latest_stats.running == 3)
        jobs.append(asyncio.ensure_future(collect(client.generate(request(client, command)))))
        for result in await asyncio.gather(*jobs, return_exceptions=True):
            assert isinstance(result, EngineDeadError)
            assert words in str(result)
        assert not client.alive
        assert words in client.failure
        with pytest.raises(EngineDeadError, match=words):
            client.generate(request(client, 1))
        await eventually(lambda: not client.processes[0]._link.process.running)

    serve(test, step_timeout=2)


def test_the_traceback_of_a_defect_is_logged():
    async def test(client):
        lines = []
        client.on_log = lines.append
        with pytest.raises(EngineDeadError):
            await collect(client.generate(request(client, script.RAISE)))
        (line,) = lines
        assert line.level == logging.ERROR
        assert "scripted_engine.py" in line.message
        assert line.message.endswith("ZeroDivisionError: by the script")

    serve(test)


def test_a_killed_process_is_noticed():
    async def test(client):
        job = asyncio.ensure_future(collect(client.generate(request(client, 1, max_tokens=10**6))))
        await eventually(lambda: client.latest_stats.running == 1)
        os.kill(client.processes[0]._link.process.pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await asyncio.wait_for(job, 30)
        assert not client.alive

    serve(test)


def test_a_long_step_is_not_death_and_shows_its_age(steps):
    async def test(client):
        job = asyncio.ensure_future(
            collect(client.generate(request(client, script.SLEEP, max_tokens=1)))
        )
        await eventually(lambda: client.latest_stats.step_age > 2)
        assert client.alive and not job.done()
        steps.allow_all()
        assert (await job) == {0: [script.SLEEP]}

    serve(test)


def test_neither_idling_nor_many_short_steps_are_a_step_that_hangs():
    async def test(client):
        await asyncio.sleep(2)
        await eventually(lambda: client.alive)  # it may have to wait for a core
        began = time.monotonic()
        while time.monotonic() - began < 2:
            await collect(client.generate(request(client, 3, max_tokens=100)))
        assert client.alive

    serve(test, step_timeout=1)


def test_a_client_that_was_busy_itself_does_not_blame_the_engine(monkeypatch):
    async def test(client):
        time.sleep(liveness.GONE_SECONDS + 1)
        await asyncio.sleep(0.5)
        await eventually(lambda: client.alive)

    monkeypatch.setattr(liveness, "GONE_SECONDS", 3.0)
    serve(test)


@pytest.mark.parametrize(
    ("model", "words"), [("missing", "^no such model: missing$"), ("crash", "signal SIGABRT")]
)
def test_a_failed_start_says_why(model, words):
    async def run():
        client = EngineClient(MODULE)
        with pytest.raises(EngineStartError, match=words):
            await client.start(Settings(model=model))
        assert not client.alive
        await client.close()

    asyncio.run(run())


def test_close_ends_the_process_and_the_open_streams():
    async def run():
        client = EngineClient(MODULE)
        await client.start(Settings(model="scripted"))
        process = client.processes[0]._link.process
        folder = client.processes[0]._link._address.folder
        job = asyncio.ensure_future(collect(client.generate(request(client, 1, max_tokens=10**6))))
        await asyncio.sleep(0.1)
        await client.close()
        with pytest.raises(EngineDeadError, match="shut down"):
            await job
        assert process._child.returncode == 0
        assert not folder.exists()
        assert not client.alive

    asyncio.run(run())


def test_a_process_that_was_only_spawned_is_ended_too():
    async def run():
        client = EngineClient(MODULE)
        client.spawn(Settings(model="scripted"))
        process = client.processes[0]._link.process
        await client.close()
        assert not process.running

    asyncio.run(run())


def test_signals_to_the_group_leave_the_engine_to_its_parent():
    async def test(client):
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(client.processes[0]._link.process.pid, number)
        assert await collect(client.generate(request(client, 3, max_tokens=2))) == {0: [3, 4]}
        assert client.alive

    serve(test)


_PARENT = """
import asyncio, os, sys
from rtp_llm.config.settings import Settings
from rtp_llm.engine.client.engine_client import EngineClient
async def run():
    client = EngineClient(sys.argv[1])
    await client.start(Settings(model="scripted"))
    link = client.processes[0]._link
    print(link.process.pid, link._address.folder, flush=True)
    await asyncio.sleep(60)
asyncio.run(run())
"""


def test_the_engine_ends_when_its_parent_is_killed():
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, MODULE],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    engine, folder = parent.stdout.readline().split()
    assert Path(f"/proc/{engine}").exists() and Path(folder).exists()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{engine}").exists() and not _is_zombie(engine):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not Path(folder).exists()


def _is_zombie(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("rtp_llm.engine.client.engine_client", {"torch", "numpy"}),
        # Of a process that tests start again and again.
        (MODULE, {"torch"}),
    ],
)
def test_what_imports_no_torch(module, heavy):
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.stdout.strip() == "[]"
