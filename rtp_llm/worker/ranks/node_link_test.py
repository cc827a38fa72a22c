# SPDX-License-Identifier: Apache-2.0
"""Connections between nodes: only who has the key is heard, and only what a node can say."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rtp_llm.worker.ranks import node_link as module
from rtp_llm.worker.ranks.node_link import Link, LinkError, WrongKeyError

KEY = b"0123456789abcdef"
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def sockets() -> Iterator[Pair]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = socket.create_connection(listener.getsockname())
        here, _ = listener.accept()
    yield here, there
    here.close()
    there.close()


def greet(sockets: Pair, ours: bytes = KEY, theirs: bytes = KEY) -> tuple[Any, Any]:
    """Both ends; an error in place of one that failed."""
    ends: list[Any] = [None, None]

    def make(place: int, key: bytes, side: Any) -> None:
        try:
            ends[place] = Link(sockets[place], key, side)
        except LinkError as error:
            ends[place] = error

    other = threading.Thread(target=make, args=(1, theirs, "other"))
    other.start()
    make(0, ours, "first")
    other.join()
    return ends[0], ends[1]


def test_frames_arrive_whole_and_in_order(sockets: Pair) -> None:
    here, there = greet(sockets)
    frames = [b"", b"x", os.urandom(3_000_000), b"last"]
    sender = threading.Thread(target=lambda: [here.send(each) for each in frames])
    sender.start()
    assert [bytes(there.receive()) for _ in frames] == frames
    sender.join()
    assert here.alive
    there.close()
    with pytest.raises(LinkError, match=r"127.0.0.1 is gone \(the connection has ended\)"):
        here.receive()
    assert not here.alive


@pytest.mark.parametrize("keys", [(KEY, KEY + b"!"), (KEY, b""), (b"", KEY)])
def test_another_key(keys: tuple[bytes, bytes], sockets: Pair) -> None:
    errors = greet(sockets, *keys)
    assert all(isinstance(each, WrongKeyError) for each in errors), errors
    assert "127.0.0.1 has another key (worker_key_file)" in str(errors[0])


def test_a_proof_that_is_sent_back_proves_nothing(sockets: Pair) -> None:
    def mirror() -> None:
        while data := sockets[1].recv(4096):
            sockets[1].sendall(data)

    threading.Thread(target=mirror, daemon=True).start()
    with pytest.raises(WrongKeyError):
        Link(sockets[0], KEY, "first")


def test_who_says_nothing_is_not_waited_for(sockets: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_HANDSHAKE_SECONDS", 0.05)
    with pytest.raises(LinkError, match="does not speak as a node does"):
        Link(sockets[0], KEY, "first")
    assert sockets[0].fileno() == -1


def test_a_frame_has_a_limit(sockets: Pair) -> None:
    here, there = greet(sockets)
    there._socket.sendall((module.MAX_BYTES + 1).to_bytes(8, "little"))
    with pytest.raises(LinkError, match="sends 1073741825 bytes at once, 1073741824 at most"):
        here.receive()


def test_a_frame_is_waited_for_as_long_as_asked(sockets: Pair) -> None:
    here, there = greet(sockets)
    with pytest.raises(LinkError, match="timed out"):
        here.receive(0.05)
    there.send(b"late")
    time.sleep(0.05)
    assert here.receive(60.0) == b"late"
    began = time.monotonic()
    assert here.alive
    assert time.monotonic() - began < 30.0  # a look waits for nothing


def test_the_kernel_notices_a_machine_that_is_gone(sockets: Pair) -> None:
    here, _ = greet(sockets)
    tcp = socket.IPPROTO_TCP
    assert here._socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    # A second without traffic, then a question, and two seconds for its answer.
    assert here._socket.getsockopt(tcp, socket.TCP_KEEPIDLE) == 1
    assert here._socket.getsockopt(tcp, socket.TCP_USER_TIMEOUT) == 2000
