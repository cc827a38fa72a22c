# SPDX-License-Identifier: Apache-2.0
"""Tests of what collectives exchange after a capture: alone, and among ranks over gloo."""

from __future__ import annotations

import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm.testing.ranks import run_ranks
from rtp_llm.worker.graphs.capture_session import CaptureError, CaptureSession


class Collective:
    """One that exchanges handles; fails where a test says so."""

    def __init__(self, rank: int = 0, fails_in: str = "") -> None:
        self.capturing = False
        self.marked: list[bytes] = []
        self.opened: list[list[bytes]] = []
        self.usable: list[list[bytes]] = []
        self.discarded = 0
        self._rank, self._fails_in = rank, fails_in

    def call(self, count: int = 1) -> None:
        """Called in a step; only in graphs other ranks have to learn of its buffers."""
        if self.capturing:
            start = len(self.marked)
            self.marked += [b"%d:%d" % (self._rank, start + number) for number in range(count)]

    def _step(self, name: str) -> None:
        if self._fails_in == name:
            raise ValueError(f"{name} by the test")

    def pending(self) -> list[bytes]:
        self._step("pending")
        return self.marked

    def open(self, handles: Any) -> None:
        self._step("open")
        self.opened = [list(each) for each in handles]

    def commit(self) -> None:
        self.usable += self.opened
        self.marked, self.opened = [], []

    def discard(self) -> None:
        self.discarded += 1
        self.marked, self.opened = [], []
        self._step("discard")


class Graph:
    """Captures nothing; may refuse to begin or to end."""

    pool = None

    def __init__(self, fails_in: str = "") -> None:
        self._fails_in = fails_in
        self.released = 0

    @contextmanager
    def capture(self, stream: Any = None) -> Any:
        if self._fails_in == "begin":
            raise RuntimeError("begin by the test")
        yield
        if self._fails_in == "end":
            raise RuntimeError("end by the test")

    def replay(self) -> None:
        pass

    def release(self) -> None:
        self.released += 1


def test_the_end_frees_graphs_that_are_still_there() -> None:
    session, kept = CaptureSession(), [Graph(), Graph()]
    for graph in (*kept, Graph()):
        with session.capture(graph):
            pass
    session.end()
    assert [graph.released for graph in kept] == [1, 1]


def test_collectives_know_when_a_capture_goes_on() -> None:
    collective = Collective()
    session = CaptureSession(None, [collective, None])
    collective.call()
    with session.capture(Graph()):
        assert session.capturing and collective.capturing
        collective.call()
    assert not session.capturing and not collective.capturing
    collective.call()
    assert collective.marked == [b"0:0"]


@pytest.mark.parametrize("place", ["begin", "step", "end"])
def test_a_capture_that_fails_leaves_no_flag_behind(place: str) -> None:
    collective = Collective()
    session = CaptureSession(None, [collective])
    with pytest.raises(RuntimeError, match=f"{place} by the test"), session.capture(Graph(place)):
        raise RuntimeError(f"{place} by the test")
    assert not session.capturing and not collective.capturing


def test_one_rank_opens_its_own_buffers() -> None:
    collective = Collective()
    session = CaptureSession(None, [collective])
    with session.capture(Graph()):
        collective.call(2)
    session.finish_capture_session()
    assert collective.usable == [[b"0:0", b"0:1"]]
    session.finish_capture_session()
    assert len(collective.usable) == 1, "nothing was pending any more"


def test_one_rank_raises_what_went_wrong(caplog: pytest.LogCaptureFixture) -> None:
    first, second = Collective(fails_in="discard"), Collective()
    session = CaptureSession(None, [first, second])
    with pytest.raises(MemoryError, match="by the test"):
        session.finish_capture_session(MemoryError("by the test"))
    assert first.discarded == second.discarded == 1, "although one of them failed"
    assert "discard by the test" in caplog.text


# How each rank's part goes: what fails there, and how many buffers a call marks.
FINE = ("", 2)


def _capture(world: Any, parts: list[tuple[str, int]]) -> dict[str, Any]:
    """A rank's capture and what it leaves, then another one in which nothing goes wrong."""
    fails_in, count = parts[world.rank]
    collective = None if fails_in == "missing module" else Collective(world.rank, fails_in)
    session = CaptureSession(world.host, [collective])
    failure, error = None, ""
    try:
        with session.capture(Graph(fails_in)):
            if fails_in == "step":
                raise MemoryError("step by the test")
            if collective is not None:
                collective.call(count)
    except Exception as caught:
        failure = caught
    if fails_in == "late":
        time.sleep(0.3)
    try:
        session.finish_capture_session(failure)
    except CaptureError as caught:
        error = str(caught)
    found = {"error": error, "usable": [], "pending": 0, "discarded": 0}
    if collective is not None:
        found.update(usable=collective.usable, discarded=collective.discarded)
        found["pending"] = len(collective.marked) + len(collective.opened)
        collective._fails_in, collective.usable = "", []
        with session.capture(Graph()):
            collective.call()
    missing = any(name == "missing module" for name, _ in parts)
    if not missing:
        session.finish_capture_session()
        assert collective is not None
        found["again"] = collective.usable
    return found


def ranks(folder: Path, *parts: tuple[str, int]) -> list[Any]:
    found = run_ranks(folder, len(parts), _capture, list(parts))
    assert all(isinstance(each, dict) for each in found), found
    return found


AGAIN = [[b"0:0"], [b"1:0"]]


@pytest.mark.parametrize("parts", [(FINE, FINE), (("late", 2), FINE)], ids=str)
def test_pending_buffers_of_all_ranks_are_opened_by_all(tmp_path: Path, parts: Any) -> None:
    for found in ranks(tmp_path, *parts):
        usable = [[b"0:0", b"0:1"], [b"1:0", b"1:1"]]
        expected = {"error": "", "usable": usable, "pending": 0, "discarded": 0, "again": AGAIN}
        assert found == expected


@pytest.mark.parametrize(
    "parts", [(("", 0), ("", 0)), (("missing module", 0), ("missing module", 0))], ids=str
)
def test_without_pending_buffers_there_is_nothing_to_do(tmp_path: Path, parts: Any) -> None:
    for found in ranks(tmp_path, *parts):
        assert (found["error"], found["usable"], found["pending"]) == ("", [], 0)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ((FINE, ("begin", 2)), "rank 1: RuntimeError('begin by the test')"),
        ((("step", 2), FINE), "rank 0: MemoryError('step by the test')"),
        ((FINE, ("end", 2)), "rank 1: RuntimeError('end by the test')"),
        ((("pending", 2), FINE), "rank 0: ValueError('pending by the test')"),
        ((FINE, ("open", 2)), "rank 1: ValueError('open by the test')"),
        ((("open", 2), ("open", 2)), "rank 0: ValueError('open by the test'); rank 1: ValueError"),
        ((FINE, ("", 1)), "different numbers of pending buffers: [[2], [1]]"),
        ((FINE, ("missing module", 0)), "different numbers of pending buffers: [[2], [0]]"),
    ],
    ids=str,
)
def test_one_ranks_failure_is_raised_by_all_and_nothing_is_kept(
    tmp_path: Path, parts: Any, reason: str
) -> None:
    for rank, found in enumerate(ranks(tmp_path, *parts)):
        assert reason in found["error"]
        assert (found["usable"], found["pending"]) == ([], 0)
        assert found["discarded"] == (parts[rank][0] != "missing module")
        assert found.get("again", AGAIN) == AGAIN, "the next capture is not touched by it"


def _left_in_its_step(world: Any) -> str:
    """Rank 1 fails while rank 0 waits for it in a sum of the step."""
    session = CaptureSession(world.host, timeout=0.2)
    if world.rank == 0:
        world.tensors.sum(torch.zeros(1))
        return "ended"
    with pytest.raises(
        CaptureError, match=r"wait for this one in its step: MemoryError\(\)"
    ) as error:
        session.finish_capture_session(MemoryError())
    assert isinstance(error.value.__cause__, RuntimeError)
    world.tensors.sum(torch.zeros(1))  # the test's end; a rank's process would end here
    return str(error.value)


def test_a_rank_that_fails_does_not_wait_for_those_that_wait_for_it(tmp_path: Path) -> None:
    ended, said = run_ranks(tmp_path, 2, _left_in_its_step)
    assert ended == "ended"
    assert said.startswith("a graph could not be captured, and the other ranks wait")
