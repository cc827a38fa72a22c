# SPDX-License-Identifier: Apache-2.0
"""Node 0 waits for the others, takes those that fit, and says who did not come."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rtp_llm.config.settings import Settings
from rtp_llm.engine.messages import EngineStartError
from rtp_llm.engine.ranks.meeting import Meeting
from rtp_llm.engine.ranks.shared_settings import shared_settings
from rtp_llm.testing.kept_port import kept_port
from rtp_llm.worker.ranks.frames import Hello, Refused, encode, from_first
from rtp_llm.worker.ranks.node_link import Link

TIMEOUT = 60.0


@pytest.fixture
def settings() -> Iterator[Settings]:
    with kept_port() as port:
        yield Settings(
            nnodes=3,
            tensor_parallel_size=3,
            master_addr="127.0.0.1",
            master_port=port,
            start_timeout=TIMEOUT,
        )


def come(settings: Settings, node: int, **changed: Any) -> Link:
    """As a node does."""
    address = (settings.master_addr, settings.master_port)
    link = Link(socket.create_connection(address), b"", "other")
    link.send(encode(Hello(node=node, shared={**shared_settings(settings), **changed})))
    return link


def nobody() -> None:
    """Nothing to look at meanwhile."""


def in_background(meeting: Meeting, found: list[Any]) -> threading.Thread:
    thread = threading.Thread(target=lambda: found.append(meeting.await_nodes(nobody)))
    thread.start()
    return thread


def refusal(link: Link) -> str:
    said = from_first(link.receive(TIMEOUT))
    assert isinstance(said, Refused)
    return said.reason


def test_those_that_fit_are_taken_and_the_others_hear_why_not(settings: Settings) -> None:
    meeting = Meeting(settings)
    found: list[dict[int, Link]] = []
    waiting = in_background(meeting, found)
    one = come(settings, 1)
    time.sleep(0.2)  # it is taken first
    assert refusal(come(settings, 1)) == "node_rank: node 1 is here already, from 127.0.0.1"
    assert refusal(come(settings, 3)) == "node_rank: there is no node 3 of 3"
    assert refusal(come(settings, 0)) == "node_rank: there is no node 0 of 3"
    different = {"seed": 5, "dtype": "float16"}
    expected = "dtype: auto on node 0, float16 on this one; seed: 0 on node 0, 5 on this one"
    assert refusal(come(settings, 2, **different)) == expected
    with socket.create_connection((settings.master_addr, settings.master_port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(100))
        two = come(settings, 2)
        waiting.join(TIMEOUT)
    assert found[0].keys() == {1, 2}
    meeting.close()
    with pytest.raises(ConnectionRefusedError):
        come(settings, 1)
    for link in (one, two, *found[0].values()):
        link.close()


def test_a_node_that_went_away_may_come_again(settings: Settings) -> None:
    meeting = Meeting(settings)
    found: list[dict[int, Link]] = []
    waiting = in_background(meeting, found)
    come(settings, 1).close()
    links = [come(settings, 2)]
    waiting.join(0.5)
    assert not found  # for all came, but one of them is gone
    links.append(come(settings, 1))
    waiting.join(TIMEOUT)
    assert found[0].keys() == {1, 2} and found[0][1].alive
    meeting.close()
    for link in (*links, *found[0].values()):
        link.close()


def test_those_that_do_not_come_are_named(settings: Settings) -> None:
    settings = Settings(**{**settings.__dict__, "start_timeout": 1.0})
    meeting = Meeting(settings)
    one = come(settings, 1)
    with pytest.raises(EngineStartError) as missed:
        meeting.await_nodes(nobody)
    meeting.close()
    one.close()
    assert str(missed.value) == (
        "node 2 of 3 did not come within start_timeout=1 s: start `rtp-llm serve MODEL --node-rank "
        f"2` with the same settings there; it must reach 127.0.0.1:{settings.master_port}"
    )


def test_who_waits_hears_of_what_else_is_lost(settings: Settings) -> None:
    meeting = Meeting(settings)

    def look() -> None:
        raise ValueError("a rank here")

    with pytest.raises(ValueError, match="a rank here"):
        meeting.await_nodes(look)
    meeting.close()


def test_an_address_where_it_cannot_listen(settings: Settings) -> None:
    meeting = Meeting(settings)
    with pytest.raises(EngineStartError, match=r"node 0 cannot listen on .* in use"):
        Meeting(settings)
    meeting.close()
    elsewhere = Settings(**{**settings.__dict__, "master_addr": "203.0.113.1"})
    with pytest.raises(EngineStartError, match=r"node 0 cannot listen on 203\.0\.113\.1:"):
        Meeting(elsewhere)
