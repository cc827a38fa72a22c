# SPDX-License-Identifier: Apache-2.0
"""Ranks that need nothing of each other, as those of a dense model: one that dies or is silent."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rtp_llm.config.settings import Settings
from rtp_llm.engine.client import liveness
from rtp_llm.engine.client.engine_client import EngineClient
from rtp_llm.engine.messages import AddRequest, EngineDeadError, StepOutput
from rtp_llm.engine.replicas.rank_engines import RankEngines
from rtp_llm.request.sampling_params import SamplingParams
from rtp_llm.testing.engine import scripted_engine as script
from rtp_llm.worker.ranks import stopped

pytestmark = pytest.mark.usefixtures("forked_processes")

MODULE = "rtp_llm.testing.engine.scripted_engine"
SETTINGS = Settings(model="scripted", data_parallel_size=2, step_timeout=1.0)
LONG = 900
SIGNS = [
    (signal.SIGSTOP, f"rank 1: the engine process {stopped.STOPPED}"),
    (signal.SIGKILL, "rank 1: the engine process was ended by signal SIGKILL"),
]
every_end = pytest.mark.parametrize(("sign", "words"), SIGNS, ids=["stopped", "killed"])


def request(number: int, first: int = 1, max_tokens: int = LONG) -> AddRequest:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return AddRequest(request_id=number, prompt_token_ids=[first], params=params)


@pytest.fixture(autouse=True)
def watchdog(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Who waits for a dead rank for ever fails instead; silence is told early."""
    monkeypatch.setattr(liveness, "GONE_SECONDS", 4.0)  # more than a busy machine is late

    def bark(number: int, frame: object) -> None:
        raise TimeoutError("a rank that works no more was not noticed")

    before = signal.signal(signal.SIGALRM, bark)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def engines() -> Iterator[RankEngines]:
    made = RankEngines(SETTINGS, MODULE)
    pids = [link.process.pid for link in made._links]
    try:
        yield made
    finally:
        made.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def step_until_the_end(engines: RankEngines) -> str:
    """Its reason; somebody always asks until then, but not for long."""
    numbers, deadline = itertools.count(100), time.monotonic() + 60
    with pytest.raises(EngineDeadError) as error:
        while time.monotonic() < deadline:
            if not engines._open:
                engines.add(request(next(numbers)))
            engines.step()
    return str(error.value)


@every_end
def test_a_rank_that_works_no_more_ends_what_the_other_goes_on_with(engines, sign, words):
    for number in (1, 2):  # one on each rank
        engines.add(request(number))
    assert all(isinstance(output, StepOutput) for output in engines.step())
    os.kill(engines._links[1].process.pid, sign)
    assert step_until_the_end(engines) == words
    assert not engines.alive
    with pytest.raises(EngineDeadError, match="rank 1"):
        engines.add(request(3))


@every_end
def test_a_rank_failure_is_reported_to_the_next_call(engines, sign, words):
    os.kill(engines._links[1].process.pid, sign)
    time.sleep(2)
    assert step_until_the_end(engines) == words


def test_nobody_who_was_only_left_alone_counts_as_silent(engines):
    time.sleep(3)
    engines.add(request(1, max_tokens=200))
    engines.add(request(2, max_tokens=200))
    while engines._open:
        engines.step()
    assert engines.alive


def test_a_step_that_hangs_on_one_rank_ends_all(engines):
    engines.add(request(1))
    engines.add(request(2, script.SLEEP))
    words = "rank 1: a step hangs: it has taken longer than step_timeout=1 s"
    assert step_until_the_end(engines) == words


@every_end
def test_streams_of_all_ranks_end_and_the_server_knows(sign, words):
    async def life() -> None:
        client = EngineClient(MODULE, 2)
        await client.start(SETTINGS)
        try:
            numbers = [client.new_request_id() for _ in range(3)]
            streams = [client.generate(request(number, max_tokens=10**6)) for number in numbers]
            for stream in streams:
                await anext(stream)
            while not client.alive:  # one of them may have to wait for a core
                await asyncio.sleep(0.01)
            os.kill(client.processes[1]._link.process.pid, sign)
            async with asyncio.timeout(60):
                for stream in streams:
                    with pytest.raises(EngineDeadError, match=words.removeprefix("rank 1: ")):
                        while True:
                            await anext(stream)
            assert not client.alive and client.failure == words
        finally:
            await client.close(0.0)

    asyncio.run(life())


@pytest.mark.parametrize("model", ["scripted", "lockstep"])
def test_a_silent_rank_is_reported(monkeypatch, model):
    """The other one goes on serving unless it needs this one."""
    monkeypatch.setattr(liveness, "GONE_SECONDS", 30)
    monkeypatch.setattr(stopped, "STOPPED_SECONDS", 30)

    async def life() -> None:
        client = EngineClient(MODULE, 2)
        await client.start(dataclasses.replace(SETTINGS, model=model))
        try:
            rank = client.processes[1]._link.process.pid
            os.kill(rank, signal.SIGSTOP)
            async with asyncio.timeout(60):
                while client.processes[1].alive:
                    await asyncio.sleep(0.05)
                assert client.failure is None
                if model == "lockstep":
                    while client.alive:
                        await asyncio.sleep(0.05)
                else:
                    while client.ranks_up != (1, 2):
                        await asyncio.sleep(0.05)
                    assert client.alive
                    for _ in range(2):  # both by the one that serves
                        stream = client.generate(request(client.new_request_id(), max_tokens=3))
                        assert [each async for each in stream][-1].finish_reason == "length"
                os.kill(rank, signal.SIGCONT)
                while not (client.alive and client.processes[1].alive):
                    await asyncio.sleep(0.05)
                for _ in range(2):  # one on each rank
                    stream = client.generate(request(client.new_request_id(), max_tokens=3))
                    assert [token async for each in stream for token in each.token_ids] == [1, 2, 3]
        finally:
            await client.close(0.0)

    asyncio.run(life())
