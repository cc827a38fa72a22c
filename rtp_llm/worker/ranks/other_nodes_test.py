# SPDX-License-Identifier: Apache-2.0
"""Nodes that say nothing: their machine answers, their process does not run."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from rtp_llm.worker.ranks import other_nodes
from rtp_llm.worker.ranks.frames import Alive, encode
from rtp_llm.worker.ranks.node_link import Link
from rtp_llm.worker.ranks.other_nodes import OtherNodes
from rtp_llm.worker.ranks.rank_failure import RankFailure, WorkerLostError

KEY = b"0123456789abcdef"
_TIMEOUT = 60.0


@pytest.fixture
def links() -> Iterator[tuple[Link, Link]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = socket.create_connection(listener.getsockname())
        here, _ = listener.accept()
    made: list[Link] = []
    other = threading.Thread(target=lambda: made.append(Link(there, KEY, "other")))
    other.start()
    first = Link(here, KEY, "first")
    other.join()
    yield first, made[0]
    first.close()
    made[0].close()


def test_a_silent_node_is_lost(links: tuple[Link, Link], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_nodes, "SILENCE_SECONDS", 0.2)
    rank_failure = RankFailure()
    nodes = OtherNodes({1: links[0]}, rank_failure)
    with pytest.raises(WorkerLostError, match=r"node 1: 127.0.0.1 gave no sign of life for 0.2 s"):
        rank_failure.check(_TIMEOUT)
    nodes.close()


def test_signs_of_life_are_no_news(
    links: tuple[Link, Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_nodes, "SILENCE_SECONDS", _TIMEOUT)
    rank_failure = RankFailure()
    nodes = OtherNodes({1: links[0]}, rank_failure)
    for _ in range(3):
        links[1].send(encode(Alive()))
    rank_failure.check(0.1)
    links[1].close()
    with pytest.raises(WorkerLostError, match=r"node 1: 127.0.0.1 is gone"):
        rank_failure.check(_TIMEOUT)
    nodes.close()
