# SPDX-License-Identifier: Apache-2.0
"""Processes of ranks: what they say, and that they end with the one that started them."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.worker.ranks.rank_failure import RankFailure, WorkerLostError
from rtp_llm.worker.ranks.rank_processes import RankProcesses
from rtp_llm.worker.ranks.stopped import STOPPED
from rtp_llm.worker.worker import Worker

HERE = "rtp_llm.worker.ranks.rank_processes_test"
_TIMEOUT = 60.0


def fail() -> Worker:
    logging.getLogger("rtp_llm.engine").warning("it is about to fail")
    raise ValueError("there is no worker")


class RankLostError(RuntimeError):
    """As that of process groups is called."""


def miss_another() -> Worker:
    raise RankLostError("lost contact to another rank")


def either(misses: bool) -> Worker:
    return miss_another() if misses else wait_for_ever()


def wait_for_ever() -> Worker:
    logging.getLogger("rtp_llm.engine").warning("waiting")
    while True:
        time.sleep(1.0)


def start_one(folder: str) -> None:
    """Of a process that a test kills: it starts a rank, and says which."""
    logged = logging.StreamHandler(sys.stdout)
    logging.basicConfig(level="INFO", format="%(message)s", handlers=[logged])
    processes = RankProcesses(f"{HERE}:wait_for_ever", [()], [{}], ["rank 1"])
    print(*processes.pids, folder, flush=True)
    time.sleep(_TIMEOUT)


def wait_until(happened: Callable[[], Any]) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_first_failure_is_reported_once_with_its_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reported: list[str] = []
    rank_failure = RankFailure(reported.append)
    processes = RankProcesses(
        f"{HERE}:fail", [(), ()], [{}, {}], ["rank 1", "rank 2"], rank_failure
    )
    try:
        with pytest.raises(WorkerLostError, match=r"rank [12]: there is no worker"):
            processes.check(_TIMEOUT)
        wait_until(lambda: reported)
        with pytest.raises(WorkerLostError, match=r"rank [12]: there is no worker"):
            processes.check()
    finally:
        processes.close()
    assert len(reported) == 1
    assert f"{reported[0].split(':')[0]}: it is about to fail" in caplog.text


@pytest.mark.parametrize("killed", [True, False])
def test_who_misses_another_rank_is_not_the_reason(killed: bool) -> None:
    processes = RankProcesses(f"{HERE}:either", [(True,), (False,)], [{}, {}], ["rank 1", "rank 2"])
    reason = "rank 2 was ended by signal SIGKILL" if killed else "rank 1: RankLostError: lost"
    try:
        if killed:
            os.kill(processes.pids[1], signal.SIGKILL)
        with pytest.raises(WorkerLostError, match=reason):
            processes.check(_TIMEOUT)
    finally:
        processes.close()


def test_a_rank_that_is_stopped_is_lost_and_ended() -> None:
    """Nobody computes: it is missed before anybody waits for it, as while it loads."""
    reported: list[str] = []
    arguments: tuple[Any, Any] = ((), ())
    names = ["rank 1", "rank 2"]
    processes = RankProcesses(
        f"{HERE}:wait_for_ever", arguments, [{}, {}], names, RankFailure(reported.append)
    )
    try:
        stopped = processes.pids[1]
        os.kill(stopped, signal.SIGSTOP)
        with pytest.raises(WorkerLostError, match=f"^rank 2 {STOPPED}$"):
            processes.check(_TIMEOUT)
        wait_until(lambda: reported)
        wait_until(lambda: _has_ended(stopped))
        assert not _has_ended(processes.pids[0])
    finally:
        processes.close()
    assert reported == [f"rank 2 {STOPPED}"]


def test_an_end_that_is_asked_for_is_no_loss() -> None:
    reported: list[str] = []
    rank_failure = RankFailure(reported.append)
    processes = RankProcesses(f"{HERE}:wait_for_ever", [()], [{}], ["rank 1"], rank_failure)
    pids = processes.pids
    processes.close()
    assert not reported
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize("which", ["killed", "killed while the rank is stopped", "stopped"])
def test_a_rank_ends_with_its_parent(which: str, tmp_path: Path) -> None:
    code = f"from {HERE} import start_one; start_one({str(tmp_path)!r})"
    path = os.pathsep.join(sys.path)
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline().split()[0])
    assert "waiting" in parent.stdout.readline()
    if which == "killed while the rank is stopped":
        os.kill(pid, signal.SIGSTOP)
    if which == "stopped":
        os.kill(parent.pid, signal.SIGSTOP)
        wait_until(lambda: _has_ended(pid))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: _has_ended(pid))


def _has_ended(pid: int) -> bool:
    """Gone, or dead and not waited for by whoever does that for orphans."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
