# SPDX-License-Identifier: Apache-2.0
"""Tests of the process that waits for the engine's end, against a script instead of a model."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rtp_llm.config.settings import Settings
from rtp_llm.engine.client import rank_group, restarts
from rtp_llm.engine.client.engine_client import EngineClient
from rtp_llm.engine.client.restarts import Restarts
from rtp_llm.testing.engine.client_calls import eventually

MODULE = "rtp_llm.testing.engine.scripted_engine"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(restarts, "FIRST_DELAY_SECONDS", 0.01)
    monkeypatch.setattr(rank_group, "SPARE_SECONDS", 0.0)


def pids(client):
    return [client.processes[0]._link.process.pid]


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def test_the_next_process_is_there_before_it_is_needed():
    others = children()

    async def run():
        client = EngineClient(MODULE, restarts=Restarts(2), spare=True)
        await client.start(Settings(model="scripted"))
        for number in (1, 2):
            await eventually(lambda: client.processes[0]._spare)
            spare = client.processes[0]._spare.process.pid
            os.kill(pids(client)[0], signal.SIGKILL)
            await eventually(lambda n=number: client.restarts.total == n and client.alive)
            assert pids(client) == [spare]
        os.kill(spare, signal.SIGKILL)  # no restart is left: nothing waits any more
        await eventually(lambda: client.failure and client.processes[0]._spare is None)
        await client.close()
        assert children() == others

    asyncio.run(run())


def test_a_spare_that_died_is_replaced_and_one_that_is_left_ends():
    others = children()

    async def run():
        client = EngineClient(MODULE, restarts=Restarts(2), spare=True)
        await client.start(Settings(model="scripted"))
        await eventually(lambda: client.processes[0]._spare)
        client.processes[0]._spare.process.kill()
        os.kill(pids(client)[0], signal.SIGKILL)
        await eventually(lambda: client.restarts.total and client.alive)
        await eventually(lambda: client.processes[0]._spare)
        await client.close()
        assert children() == others

    asyncio.run(run())


PARENT = """
import signal, sys
from rtp_llm.engine.client.engine_link import EngineLink
link = EngineLink(sys.argv[1], None)
print(link.process.pid, flush=True)
signal.pause()
"""
DEVICES = ("/dev/nvidia", "/dev/dri", "/dev/kfd", "/dev/davinci")


@pytest.mark.parametrize("module", ["rtp_llm.engine.process.main", "rtp_llm.disagg.process"])
def test_it_opens_no_device_and_ends_with_its_parent(module, socket_folder):
    """It has imported torch, and waits."""
    environ = {**os.environ, "TMPDIR": str(socket_folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PARENT, module]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as parent:
        try:
            spare = Path(f"/proc/{parent.stdout.readline().strip()}")
            wait(lambda: "libtorch_cpu" in (spare / "maps").read_text())
            wait(lambda: (spare / "syscall").read_text().split()[1:2] == ["0x0"])  # reads input
            opened = [os.readlink(each) for each in (spare / "fd").iterdir()]
            assert not [name for name in opened if name.startswith(DEVICES)]
            assert len(os.listdir(socket_folder)) == 1
        finally:
            parent.kill()
    wait(lambda: not spare.exists() or "Z (" in (spare / "status").read_text())
    wait(lambda: not os.listdir(socket_folder))


def wait(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
