# SPDX-License-Identifier: Apache-2.0
"""When a prefill worker that says nothing counts as stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rtp_llm.config.options import SettingsError
from rtp_llm.disagg.decode import peers as peer_module
from rtp_llm.disagg.decode.peers import Peer, Peers
from rtp_llm.disagg.wire.messages import Load, Ping
from rtp_llm.engine.waker import Waker


class Silence:
    """A connection to somebody who says only what the test says."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.closed = False

    def send(self, message: Any) -> None:
        self.said.append(message)

    def close(self) -> None:
        self.closed = True


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(peer_module, "time", SimpleNamespace(monotonic=lambda: self.now))


class Case:
    """A worker that owes us 50 tokens and was heard just now."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.connection = Clock(monkeypatch), Silence()
        connection: Any = self.connection
        self.peer = Peer(
            "a:1", connection, "tcp", "tcp://a:2", requested_tokens=50, heard_at=1000.0
        )
        self.peers = Peers([], "", Waker(), transports=SimpleNamespace())  # type: ignore[arg-type]
        self.peers.all.append(self.peer)

    def hear(self) -> None:
        connection: Any = self.connection
        self.peers._messages.put((self.peer, connection, Load(waiting_tokens=50)))

    def after(self, seconds: float) -> int:
        """The questions so far, when so much time has passed."""
        self.clock.now += seconds
        self.peers.take()
        assert self.connection.said == [Ping()] * len(self.connection.said)
        return len(self.connection.said)


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> Case:
    return Case(monkeypatch)


def test_four_questions_in_ten_seconds(case: Case) -> None:
    assert [case.after(1) for _ in range(9)] == [0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert not case.connection.closed
    assert case.after(1) == 4
    assert case.connection.closed


def test_an_answer_begins_the_count_anew(case: Case) -> None:
    assert [case.after(2) for _ in range(4)] == [1, 2, 3, 4]
    case.hear()
    assert [case.after(2) for _ in range(5)] == [4, 5, 6, 7, 8]
    assert not case.connection.closed
    case.after(2)
    assert case.connection.closed


def test_who_owes_nothing_is_not_asked(case: Case) -> None:
    case.peer.requested_tokens = 0
    assert [case.after(60) for _ in range(6)] == [0] * 6
    assert not case.connection.closed


def test_time_that_we_were_stopped_for_counts_as_one_question(case: Case) -> None:
    assert [case.after(3600) for _ in range(4)] == [1, 2, 3, 4]
    assert not case.connection.closed


def until(done: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not done():
        assert time.monotonic() < end
        time.sleep(0.005)


class Listed:
    """Workers whose addresses change, with how often they were asked for; none: no list."""

    def __init__(self, *addresses: str) -> None:
        self.addresses, self.asked = list(addresses), 0

    def read(self) -> list[str]:
        self.asked += 1
        if not self.addresses:
            raise SettingsError("there is no file")
        return list(self.addresses)


def test_the_list_of_workers_is_read_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(peer_module, "_READ_SECONDS", 0.01)
    visited: list[str] = []

    def visit(self: Peers, peer: Peer) -> str:
        visited.append(peer.address)
        peer.gone.wait()
        return ""

    def addresses() -> list[str]:
        return [peer.address for peer in peers.all]

    monkeypatch.setattr(Peers, "_visit", visit)
    listed = Listed("a:1", "b:2")
    forgotten: list[str] = []
    transports: Any = SimpleNamespace(forget=forgotten.append)
    peers = Peers(["a:1"], "", Waker(), transports)
    first, connection = peers.all[0], Silence()
    first.connection = connection  # type: ignore[assignment]
    peers.follow(listed.read)
    until(lambda: addresses() == ["a:1", "b:2"])
    assert peers.all[0] is first and not connection.closed
    listed.addresses.remove("a:1")
    until(lambda: connection.closed)
    assert first.gone.is_set() and addresses() == ["b:2"] and not forgotten
    until(lambda: not peers.take() and forgotten)
    assert forgotten == ["a:1"]
    listed.addresses.clear()
    before = listed.asked
    until(lambda: listed.asked > before + 2)
    assert addresses() == ["b:2"], "an unreadable list changes nothing"
    assert [r.getMessage() for r in caplog.records] == [
        "prefill workers stay as they are: there is no file"
    ]
    assert sorted(visited) == ["a:1", "b:2"], "a worker that stays keeps its connection"
    peers.close()
    assert peers.all[0].gone.is_set()
