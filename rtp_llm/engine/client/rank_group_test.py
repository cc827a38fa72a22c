# SPDX-License-Identifier: Apache-2.0
"""Tests of restarts, against processes that follow a script instead of a model."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rtp_llm.config.settings import Settings
from rtp_llm.engine.client import restarts as module
from rtp_llm.engine.client.engine_client import EngineClient
from rtp_llm.engine.client.process_client import ProcessClient
from rtp_llm.engine.client.restarts import Restarts
from rtp_llm.engine.messages import EngineDeadError, EngineStartError, RequestError
from rtp_llm.testing.engine import scripted_engine as script
from rtp_llm.testing.engine.allowed_steps import AllowedSteps
from rtp_llm.testing.engine.client_calls import collect, eventually, request

pytestmark = pytest.mark.usefixtures("forked_processes")

MODULE = "rtp_llm.testing.engine.scripted_engine"
LONG = 10**6  # tokens


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch):
    monkeypatch.setattr(module, "FIRST_DELAY_SECONDS", 0.01)


@pytest.fixture
def steps(tmp_path, monkeypatch):
    """None, until the test allows some; counted by each process."""
    made = AllowedSteps(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


def serve(
    test: Callable[[EngineClient], Awaitable[None]],
    limit: int = 3,
    ranks: int = 1,
    **settings: object,
) -> None:
    async def run() -> None:
        client = EngineClient(MODULE, ranks, Restarts(limit))
        wanted = {"model": "scripted", "data_parallel_size": ranks, "step_timeout": 2, **settings}
        await client.start(Settings(**wanted))
        try:
            await asyncio.wait_for(test(client), 100)
        finally:
            processes = pids(client)
            await client.close()
            assert not any(Path(f"/proc/{pid}").exists() for pid in processes)

    asyncio.run(run())


def pids(client: EngineClient) -> list[int]:
    return [each._link.process.pid for each in client.processes if each._link]


def test_what_had_no_output_is_computed_by_the_next_process(steps):
    """And what had some fails."""

    async def test(client):
        begun = client.generate(request(client, 7, max_tokens=LONG))
        steps.allow(1)
        assert (await anext(begun)).token_ids == [7]
        waiting = [client.generate(request(client, 100 * i, n=2)) for i in range(1, 4)]
        await eventually(lambda: client.latest_stats.running == 7)
        (first,) = pids(client)
        os.kill(first, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await collect(begun)
        steps.allow_all()
        for number, stream in enumerate(waiting, 1):
            expected = list(range(100 * number, 100 * number + 8))
            assert await collect(stream) == {0: expected, 1: expected}
        assert client.restarts.replayed == 3 and client.restarts.total == 1
        assert client.alive and not Path(f"/proc/{first}").exists()

    serve(test)


@pytest.mark.parametrize("command", [script.RAISE, script.KILL, script.SLEEP])
def test_a_request_that_ends_engines_ends_two_and_no_more(steps, command):
    """Whether they fail, die or hang in a step; so do the innocent ones next to it."""

    async def test(client):
        innocent = client.generate(request(client, 1, max_tokens=LONG))
        poison = client.generate(request(client, command))
        await eventually(lambda: client.latest_stats.running == 2)
        steps.allow(0 if command == script.SLEEP else LONG)
        for stream in (poison, innocent):
            with pytest.raises(EngineDeadError):
                await collect(stream)
        steps.allow_all()
        await eventually(lambda: client.alive)
        assert client.restarts.replayed == 2 and client.restarts.total == 2
        assert await collect(client.generate(request(client, 5, max_tokens=2))) == {0: [5, 6]}
        assert client.failure is None

    serve(test)


def test_meanwhile_it_is_restarting_and_takes_nothing(monkeypatch):
    monkeypatch.setattr(module, "FIRST_DELAY_SECONDS", 0.5)

    async def test(client):
        ready = client.ready
        os.kill(pids(client)[0], signal.SIGKILL)
        await eventually(lambda: client.restarting)
        assert not client.alive and client.failure is None and client.ready is ready
        assert client.ranks_up == (0, 1)
        with pytest.raises(EngineDeadError, match="is being restarted"):
            client.generate(request(client, 1))
        await eventually(lambda: client.alive)
        assert not client.restarting and client.ranks_up == (1, 1)

    serve(test)


def test_a_killed_engine_is_never_merely_silent():
    """Also before the client has noticed its end."""

    async def test(client):
        os.kill(pids(client)[0], signal.SIGKILL)
        while client._groups[0]._restart is None:
            assert client.alive or client.restarting
            assert not client.failure
            await asyncio.sleep(0)
        await eventually(lambda: client.alive)
        client.stop_restarting()
        os.kill(pids(client)[0], signal.SIGKILL)
        while client._groups[0]._failure is None:
            assert client.alive or "SIGKILL" in client.failure
            await asyncio.sleep(0)

    serve(test)


def test_who_goes_away_meanwhile_is_not_computed(steps):
    async def test(client):
        jobs = [client.generate(request(client, i)) for i in range(1, 5)]
        asked = request(client, 9)
        jobs.append(client.generate(asked))
        await eventually(lambda: client.latest_stats.running == 5)
        os.kill(pids(client)[0], signal.SIGKILL)
        await eventually(lambda: client.restarting)
        await jobs[0].aclose()
        del jobs[1]
        client.abort(asked.request_id)
        (delta,) = [delta async for delta in jobs.pop()]
        assert delta.finish_reason == "abort" and not delta.token_ids
        steps.allow_all()
        assert [await collect(job) for job in jobs[1:]] == [
            {0: list(range(i, i + 8))} for i in (3, 4)
        ]
        assert client.restarts.replayed == 2

    serve(test)


def test_restarts_are_used_up():
    async def test(client):
        dead = []
        client.on_death = lambda: dead.append(client.failure)
        for number in range(3):
            await eventually(lambda: client.alive)
            assert client.restarts.total == number
            stream = client.generate(request(client, 1, max_tokens=LONG))
            await anext(stream)
            os.kill(pids(client)[0], signal.SIGKILL)
            with pytest.raises(EngineDeadError, match="SIGKILL"):
                await collect(stream)
            await eventually(lambda: client.restarting or client.failure is not None)
        assert not client.restarting and "SIGKILL" in client.failure
        assert dead == [client.failure]
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            client.generate(request(client, 1))

    serve(test, limit=2)


def test_without_restarts_everything_ends_at_once(steps):
    async def test(client):
        stream = client.generate(request(client, 1))
        await eventually(lambda: client.latest_stats.running == 1)
        os.kill(pids(client)[0], signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await collect(stream)
        assert client.failure and not client.restarting

    serve(test, limit=0)


def test_a_restart_that_fails_is_tried_again_and_then_given_up(steps):
    """Who waited for it learns why it does not come."""

    async def test(client):
        waiting = client.generate(request(client, 1))
        await eventually(lambda: client.latest_stats.running == 1)
        broken = ProcessClient("rtp_llm.no_such_module")
        client.processes[0].successor = lambda membership: broken
        os.kill(pids(client)[0], signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="exit code 1"):
            await collect(waiting)
        assert client.restarts.total == 2 and "exit code 1" in client.failure

    serve(test, limit=2)


def test_a_first_start_that_fails_is_not_tried_again():
    async def run():
        restarts = Restarts(3)
        client = EngineClient(MODULE, restarts=restarts)
        with pytest.raises(EngineStartError, match="no such model"):
            await client.start(Settings(model="missing"))
        assert restarts.total == 0 and not client.restarting
        await client.close()

    asyncio.run(run())


@pytest.mark.parametrize("delay", [0.0, 100.0])
def test_a_close_in_the_middle_of_a_restart_leaves_nothing(steps, monkeypatch, delay):
    monkeypatch.setattr(module, "FIRST_DELAY_SECONDS", delay)

    async def test(client):
        waiting = client.generate(request(client, 1))
        await eventually(lambda: client.latest_stats.running == 1)
        first = client.processes[0]
        os.kill(pids(client)[0], signal.SIGKILL)
        await eventually(lambda: first._link is None)
        if not delay:
            await eventually(lambda: client.processes[0]._link is not None)
        started = pids(client)
        await client.close()
        with pytest.raises(EngineDeadError, match="shut down"):
            await collect(waiting)
        assert not any(Path(f"/proc/{pid}").exists() for pid in started)

    serve(test)


def test_a_drain_restarts_nothing():
    async def test(client):
        client.stop_restarting()
        os.kill(pids(client)[0], signal.SIGKILL)
        await eventually(lambda: client.failure is not None)
        assert not client.restarting

    serve(test)


def test_a_process_that_no_kill_ends_is_the_end(monkeypatch):
    """A driver may hold it, and with it the device."""

    async def test(client):
        async def never() -> bool:
            return False

        client.processes[0].reap = never
        os.kill(pids(client)[0], signal.SIGKILL)
        await eventually(lambda: client.failure is not None)
        assert "cannot be ended" in client.failure

    serve(test)


def test_delays_grow_and_old_restarts_are_forgotten():
    now = [0.0]
    restarts = Restarts(8, lambda: now[0])
    assert [restarts.take()[1] / 0.01 for _ in range(4)] == [0, 1, 2, 4]
    now[0] = module.WINDOW_SECONDS / 2
    assert [restarts.take()[0] for _ in range(4)] == [5, 6, 7, 8]
    assert not restarts.allowed
    now[0] = module.WINDOW_SECONDS + 1
    assert restarts.allowed and restarts.take()[0] == 5
    assert restarts.total == 9


def test_no_delay_is_longer_than_half_a_minute(monkeypatch):
    monkeypatch.setattr(module, "FIRST_DELAY_SECONDS", 1.0)
    restarts = Restarts(100)
    assert [restarts.take()[1] for _ in range(7)] == [0, 1, 2, 4, 8, 16, 30]


def test_a_dense_rank_comes_back_while_the_others_serve(steps):
    async def test(client):
        both = [client.generate(request(client, i, max_tokens=LONG)) for i in (1, 2)]
        steps.allow(1)
        for stream in both:
            await anext(stream)
        waiting = [client.generate(request(client, i)) for i in (3, 4)]
        other, dying = pids(client)
        os.kill(dying, signal.SIGKILL)
        await eventually(lambda: client.ranks_up == (1, 2))
        assert client.alive and not client.restarting
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await collect(both[1])
        more = client.generate(request(client, 5))
        steps.allow_all()
        assert await collect(more) == {0: list(range(5, 13))}
        answers = [await collect(stream) for stream in waiting]
        assert answers == [{0: list(range(i, i + 8))} for i in (3, 4)]
        await eventually(lambda: client.ranks_up == (2, 2))
        assert client.restarts.total == 1 and client.restarts.replayed == 1
        assert pids(client)[0] == other and pids(client)[1] != dying
        assert (await anext(both[0])).token_ids

    serve(test, ranks=2)


def test_dense_ranks_are_restarting_when_none_is_left(monkeypatch):
    monkeypatch.setattr(module, "FIRST_DELAY_SECONDS", 0.5)

    async def test(client):
        for pid in pids(client):
            os.kill(pid, signal.SIGKILL)
        await eventually(lambda: client.restarting)
        assert not client.alive and client.failure is None and client.ranks_up == (0, 2)
        await eventually(lambda: client.ranks_up == (2, 2))
        assert client.restarts.total == 2

    serve(test, ranks=2)


def test_dense_ranks_share_their_restarts_and_end_together():
    async def test(client):
        dead = []
        client.on_death = lambda: dead.append(client.failure)
        for _ in range(2):
            await eventually(lambda: client.ranks_up == (2, 2))
            os.kill(pids(client)[1], signal.SIGKILL)
            await eventually(lambda: client.ranks_up != (2, 2))
        await eventually(lambda: client.failure is not None)
        assert "rank 1: " in client.failure and dead == [client.failure]
        assert not client.alive and not client.restarting

    serve(test, limit=1, ranks=2)


def test_ranks_in_lockstep_come_back_together(steps):
    async def test(client):
        begun = [client.generate(request(client, 1, max_tokens=LONG)) for _ in range(2)]
        steps.allow(1)
        for stream in begun:
            await anext(stream)
        waiting = [client.generate(request(client, i)) for i in (2, 3)]
        await eventually(lambda: client.latest_stats.running == 4)
        before = pids(client)
        folder = client._meeting.path
        os.kill(before[1], signal.SIGKILL)
        with pytest.raises(EngineDeadError, match=r"rank 1|SIGKILL"):
            await collect(begun[0])
        steps.allow_all()
        answers = [await collect(stream) for stream in waiting]
        assert answers == [{0: list(range(i, i + 8))} for i in (2, 3)]
        assert not set(before) & set(pids(client)) and client.ranks_up == (2, 2)
        assert client.restarts.total == 1 and client.restarts.replayed == 2
        assert not folder.exists()

    serve(test, ranks=2, model="lockstep")


def test_limits_hold_for_each_process():
    async def test(client):
        streams = [client.generate(request(client, 1, max_tokens=900)) for _ in range(4)]
        with pytest.raises(RequestError, match="4 sequences"):
            client.generate(request(client, 1))
        os.kill(pids(client)[0], signal.SIGKILL)
        await asyncio.gather(*map(collect, streams), return_exceptions=True)
        await eventually(lambda: client.alive)
        del streams
        again = [client.generate(request(client, 1, max_tokens=2)) for _ in range(4)]
        assert [await collect(stream) for stream in again] == [{0: [1, 2]}] * 4

    serve(test, max_running_requests=2, max_queued_requests=2)
