"""When a prefill worker that says nothing counts as stopped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rtp_llm.disagg import peers as peer_module
from rtp_llm.disagg.messages import Load, Ping
from rtp_llm.disagg.peers import Peer, Peers
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
        self.peer = Peer("a:1", connection, "tcp", "tcp://a:2", asked_tokens=50, heard_at=1000.0)
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
    case.peer.asked_tokens = 0
    assert [case.after(60) for _ in range(6)] == [0] * 6
    assert not case.connection.closed


def test_time_that_we_were_stopped_for_counts_as_one_question(case: Case) -> None:
    assert [case.after(3600) for _ in range(4)] == [1, 2, 3, 4]
    assert not case.connection.closed
