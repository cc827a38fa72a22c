# SPDX-License-Identifier: Apache-2.0
"""A peer that misbehaves at the listener costs a bounded amount for a bounded time."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from rtp_llm.config.roles import split_address
from rtp_llm.disagg.prefill import listener as listener_module
from rtp_llm.disagg.prefill.listener import DecodeWorker, Listener
from rtp_llm.disagg.wire import bounded_queue as queue
from rtp_llm.disagg.wire import connection as connection_module
from rtp_llm.disagg.wire.connection import MessageConnection
from rtp_llm.disagg.wire.message_loop import MessageLoop
from rtp_llm.disagg.wire.messages import LONGEST_HELLO, Hello, Load, Ping, Pong, Welcome
from rtp_llm.engine.waker import Waker
from rtp_llm.testing.disagg.raw_peers import HELLO, WELCOME, RawPeer, prefill_of, until


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    monkeypatch.setattr(listener_module, "_LOOK_SECONDS", 0.02)
    made = Listener("127.0.0.1:0", Waker())
    made.open(WELCOME)
    yield made
    made.close()


def admitted(listener: Listener) -> list[DecodeWorker]:
    """Who did so since this was asked last."""
    return [decode_worker for decode_worker, message in listener.take() if message == HELLO]


def test_who_sends_no_handshake_is_disconnected_and_who_does_stays(
    listener: Listener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener_module, "HANDSHAKE_SECONDS", 60)
    honest = RawPeer(listener)
    honest.say(HELLO)
    until(lambda: admitted(listener))
    monkeypatch.setattr(listener_module, "HANDSHAKE_SECONDS", 0.1)
    silent, slow = RawPeer(listener), RawPeer(listener)
    slow.socket.send(b"\0\0")  # the beginning of a length
    for raw_peer in (silent, slow):
        raw_peer.read_to_the_end()
        host, port = raw_peer.socket.getsockname()
        text = f"{host}:{port} sent no valid handshake"
        assert text in caplog.text
    until(lambda: listener.connections == 1)
    assert not listener._pending
    honest.say(HELLO)
    until(lambda: admitted(listener))


def test_pings_are_answered_after_the_handshake_only(listener: Listener) -> None:
    honest, raw_peer = RawPeer(listener), RawPeer(listener)
    honest.say(HELLO)
    heard = b""
    for number in range(1, 4):
        honest.say(Ping())
        while heard.count(b"pong") < number:  # no engine took anything yet
            heard += honest.socket.recv(65536)
    assert [message for _, message in listener.take()] == [HELLO]
    raw_peer.say(Ping())
    assert b"pong" not in raw_peer.read_to_the_end()


def test_a_handshake_completes_however_long_a_step_of_the_engine_takes(
    listener: Listener,
) -> None:
    raw_peer = RawPeer(listener)
    until(lambda: listener._pending)
    raw_peer.say(HELLO)
    until(lambda: not listener._pending)
    asked = prefill_of(LONGEST_HELLO)
    raw_peer.say(asked)
    heard: list[Any] = []
    until(lambda: heard.extend(listener.take()) or len(heard) > 1)
    assert [message for _, message in heard] == [HELLO, asked]


@pytest.mark.parametrize("wrong", [{"fingerprint": "another"}, {"protocol": 0}], ids=str)
def test_who_has_other_blocks_reads_our_handshake_and_is_disconnected(
    listener: Listener, wrong: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    other = RawPeer(listener)
    other.say(msgspec.structs.replace(HELLO, **wrong))
    assert b"welcome" in other.read_to_the_end()
    until(lambda: not listener.connections)
    assert not listener.take()
    assert caplog.text.count("has other blocks") == 1


def test_messages_before_the_handshake_are_not_queued(
    listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    """However much they say while the engine computes."""
    raw_peers = [RawPeer(listener) for _ in range(3)]
    asked = msgspec.msgpack.encode(prefill_of(1))
    for raw_peer, word in zip(
        raw_peers,
        (asked, msgspec.msgpack.encode(HELLO).replace(b"tp=1", b"tp=3"), b""),
        strict=True,
    ):
        with contextlib.suppress(OSError):
            for each in (word, *[asked] * 1000):
                raw_peer.send(each)
    until(lambda: len(caplog.records) == 2)
    until(lambda: not listener.connections)
    assert not listener.take()
    assert len(caplog.records) == 2


@pytest.mark.parametrize(
    ("bound", "limit", "said", "length"),
    [("MAX_WAITING", 10, 200, 50_000), ("MAX_WAITING_BYTES", 2**18, 200, 50_000)],
)
def test_who_says_more_than_the_engine_takes_is_not_read_on(
    listener: Listener,
    monkeypatch: pytest.MonkeyPatch,
    bound: str,
    limit: int,
    said: int,
    length: int,
) -> None:
    """Nothing is lost, and nobody else waits for it."""
    monkeypatch.setattr(queue, bound, limit)
    frames = [msgspec.msgpack.encode(prefill_of(length, name)) for name in range(said)]
    most = 11 if bound == "MAX_WAITING" else limit // len(frames[0]) + 1
    talker, other = RawPeer(listener), RawPeer(listener)
    for each in (talker, other):
        each.say(HELLO)
    both: list[DecodeWorker] = []
    until(lambda: both.extend(admitted(listener)) or len(both) == 2)
    talking = threading.Thread(target=lambda: [talker.send(frame) for frame in frames])
    talking.start()
    until(lambda: len(listener._messages._items) >= most)
    other.say(HELLO)
    until(lambda: len(listener._messages._items) > most)
    time.sleep(0.1)
    assert len(listener._messages._items) == most + 1 and talking.is_alive()
    heard: list[Any] = []
    until(lambda: heard.extend(message for _, message in listener.take()) or len(heard) > said)
    heard.remove(HELLO)
    assert [message.name for message in heard] == list(range(said))
    talking.join()


def test_a_closed_listener_waits_for_nobody_to_be_read(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "MAX_WAITING", 1)
    talker = RawPeer(listener)
    for _ in range(5):
        talker.say(HELLO)
    until(lambda: listener._messages._items)
    listener.close()
    until(lambda: not listener.connections)


def test_both_sides_are_shown_as_they_are_called() -> None:
    """IPv6 has brackets around it."""
    try:
        listener = Listener("[::1]:0", Waker())
    except OSError:
        pytest.skip("this machine has no IPv6")
    listener.open(WELCOME)
    host, port = split_address("", listener.address)
    assert host == "::1" and listener.address == f"[::1]:{port}"
    raw_peer = RawPeer(listener)
    raw_peer.say(HELLO)
    (decode_worker,) = _once(lambda: admitted(listener))
    assert decode_worker.peer == f"[::1]:{raw_peer.socket.getsockname()[1]}"
    listener.close()


def test_more_visitors_than_anybody_has_are_not_let_in(
    listener: Listener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener_module, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(listener_module, "FAIR_SECONDS", 600)
    inside = [RawPeer(listener) for _ in range(3)]
    until(lambda: listener.connections == 3)
    for _ in range(5):
        assert RawPeer(listener).read_to_the_end() == b""
    assert listener.connections == 3
    assert caplog.text.count("3 decode workers are connected, others are not let in") == 1
    inside.pop().socket.close()
    until(lambda: listener.connections == 2)
    late = RawPeer(listener)
    late.say(HELLO)
    until(lambda: admitted(listener))


@pytest.mark.parametrize(
    "text",
    [
        struct.pack("!i", LONGEST_HELLO + 1),
        struct.pack("!iQ", -1, 2**62),
        struct.pack("!i", -7),
        struct.pack("!i", 40) + os.urandom(40),
        struct.pack("!i", 6) + b"\xc1" * 6,  # no value of MessagePack
    ],
    ids=["long", "endless", "negative", "noise", "never used"],
)
def test_a_first_word_that_is_none_ends_the_visit(listener: Listener, text: bytes) -> None:
    raw_peer = RawPeer(listener)
    raw_peer.socket.sendall(text)
    raw_peer.read_to_the_end()
    until(lambda: not listener.connections)


def test_a_text_that_is_no_text_ends_the_visit(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    unexpected: list[Any] = []
    monkeypatch.setattr("threading.excepthook", unexpected.append)
    raw_peer = RawPeer(listener)
    raw_peer.say(HELLO)
    raw_peer.send(
        msgspec.msgpack.encode(prefill_of(1)).replace(b"extra_key\xa1k", b"extra_key\xa1\xff")
    )
    raw_peer.read_to_the_end()
    until(lambda: not listener.connections)
    assert not unexpected


def test_a_visitor_that_reads_nothing_is_cut_off(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "_MAX_UNSENT", 100)
    raw_peer = RawPeer(listener)
    raw_peer.say(HELLO)
    (decode_worker,) = _once(lambda: admitted(listener))

    def talk() -> bool:
        for number in range(1000):
            decode_worker.send(Load(waiting_tokens=number))
        assert len(decode_worker._outgoing) <= 101
        return not listener.connections

    until(talk)


def _once(make: Callable[[], list[Any]]) -> list[Any]:
    found: list[Any] = []
    until(lambda: found.extend(make()) or found)
    return found


def test_the_handshake_goes_out_before_any_answer_to_what_is_heard() -> None:
    """The other side may have spoken, and been answered, before its connection is even returned."""

    def answer(connection: MessageConnection[Any], message: Any) -> None:
        if message is not None:
            connection.send(Hello(protocol=0, fingerprint="an answer"))

    frame, loop = msgspec.msgpack.encode(WELCOME), MessageLoop("answers")
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(50):
            far = socket.create_connection(server.getsockname(), timeout=20)
            far.sendall(struct.pack("!i", len(frame)) + frame)
            connection: MessageConnection[Any] = MessageConnection(
                loop, server.accept()[0], Welcome, answer, HELLO
            )
            heard = b""
            while b"answer" not in heard:
                heard += far.recv(65536)
            assert b"Model" in heard.split(b"answer")[0]
            connection.close()
            far.close()


def test_the_number_of_threads_does_not_follow_the_number_of_decode_workers(
    listener: Listener,
) -> None:
    began = threading.active_count()
    raw_peers = [RawPeer(listener) for _ in range(50)]
    for raw_peer in raw_peers:
        raw_peer.say(HELLO)
    until(lambda: len(listener._admitted) == len(raw_peers))
    assert threading.active_count() == began
    for raw_peer in raw_peers:
        raw_peer.say(Ping())
    answer, heard = msgspec.msgpack.encode(Pong()), b""
    for raw_peer in raw_peers:
        while answer not in heard:
            heard += raw_peer.socket.recv(65536)
        raw_peer.socket.close()
        heard = b""
    until(lambda: not listener.connections)
    assert [message for _, message in listener.take()].count(None) == len(raw_peers)


def test_no_connection_begins_after_the_end_of_its_loop() -> None:
    loop = MessageLoop("closed")
    loop.close()
    with socket.create_server(("127.0.0.1", 0)) as server:
        far = socket.create_connection(server.getsockname(), timeout=20)
        with pytest.raises(RuntimeError, match="closed"):
            MessageConnection(loop, server.accept()[0], Welcome, lambda *_: None)
        far.close()
