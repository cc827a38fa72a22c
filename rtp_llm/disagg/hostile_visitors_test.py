"""Who connects and does not behave costs a bounded amount for a bounded time, on either side."""

from __future__ import annotations

import contextlib
import logging
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
from rtp_llm.disagg import channel as channels
from rtp_llm.disagg import door as doors
from rtp_llm.disagg import peers as peer_module
from rtp_llm.disagg.channel import Bell, Channel
from rtp_llm.disagg.door import Door, Visitor
from rtp_llm.disagg.messages import (
    LONGEST_HELLO,
    LONGEST_WELCOME,
    PROTOCOL,
    Hello,
    Load,
    Offer,
    Prefill,
    Welcome,
)
from rtp_llm.disagg.peers import MismatchError, Peers, wait_for_all
from rtp_llm.disagg.transports import Transports
from rtp_llm.disagg.ways import take_blocks
from rtp_llm.kept_port_for_tests import kept_port
from rtp_llm.sampling_params import SamplingParams

OFFERS = [Offer(transport="tcp", address=b"1")]
WELCOME = Welcome(protocol=PROTOCOL, fingerprint="Model tp=1", offers=OFFERS)
HELLO = Hello(protocol=PROTOCOL, fingerprint="Model tp=1")


def until(condition: Callable[[], Any], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never comes"
        time.sleep(0.005)


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    monkeypatch.setattr(doors, "_LOOK_SECONDS", 0.02)
    made = Door("127.0.0.1:0", Bell())
    made.open(WELCOME)
    yield made
    made.close()


class Stranger:
    """A plain socket at the door."""

    def __init__(self, door: Door) -> None:
        self.socket = socket.create_connection(split_address("", door.address))
        self.socket.settimeout(20)

    def send(self, body: bytes) -> None:
        self.socket.sendall(struct.pack("!i", len(body)) + body)

    def say(self, message: msgspec.Struct) -> None:
        self.send(msgspec.msgpack.encode(message))

    def read_to_the_end(self) -> bytes:
        """All that was said to it until it was sent away."""
        heard = b""
        try:
            while part := self.socket.recv(65536):
                heard += part
        except ConnectionResetError:
            pass
        return heard


def greeted(door: Door) -> list[Visitor]:
    """Who did so since this was asked last."""
    return [visitor for visitor, message in door.take() if message == HELLO]


def test_who_does_not_greet_is_sent_away_and_who_does_stays(
    door: Door, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(doors, "GREETING_SECONDS", 60)
    guest = Stranger(door)
    guest.say(HELLO)
    until(lambda: greeted(door))
    monkeypatch.setattr(doors, "GREETING_SECONDS", 0.1)
    silent, slow = Stranger(door), Stranger(door)
    slow.socket.send(b"\0\0")  # the beginning of a length
    for stranger in (silent, slow):
        stranger.read_to_the_end()
        host, port = stranger.socket.getsockname()
        words = f"{host}:{port} did not greet us rightly"
        assert words in caplog.text
    until(lambda: len(door._visitors) == 1)
    assert not door._strangers
    guest.say(HELLO)
    until(lambda: greeted(door))


def test_who_greets_rightly_is_no_stranger_however_long_a_step_of_the_engine_takes(
    door: Door,
) -> None:
    guest = Stranger(door)
    until(lambda: door._strangers)
    guest.say(HELLO)
    until(lambda: not door._strangers)
    asked = prefill_of(LONGEST_HELLO)
    guest.say(asked)
    heard: list[Any] = []
    until(lambda: heard.extend(door.take()) or len(heard) > 1)
    assert [message for _, message in heard] == [HELLO, asked]


@pytest.mark.parametrize("wrong", [{"fingerprint": "another"}, {"protocol": 0}], ids=str)
def test_who_has_other_blocks_reads_our_greeting_and_is_sent_away(
    door: Door, wrong: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    other = Stranger(door)
    other.say(msgspec.structs.replace(HELLO, **wrong))
    assert b"welcome" in other.read_to_the_end()
    until(lambda: not door._visitors)
    assert not door.take()
    assert caplog.text.count("has other blocks") == 1


def test_nothing_waits_of_what_strangers_say(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    """However much they say while the engine computes."""
    strangers = [Stranger(door) for _ in range(3)]
    asked = msgspec.msgpack.encode(prefill_of(1))
    for stranger, word in zip(
        strangers,
        (asked, msgspec.msgpack.encode(HELLO).replace(b"tp=1", b"tp=3"), b""),
        strict=True,
    ):
        with contextlib.suppress(OSError):
            for each in (word, *[asked] * 1000):
                stranger.send(each)
    until(lambda: len(caplog.records) == 2)
    until(lambda: not door._visitors)
    assert not door.take()
    assert len(caplog.records) == 2


def prefill_of(length: int) -> Prefill:
    return Prefill(
        name=1,
        prompt_token_ids=[7] * length,
        params=SamplingParams(),
        extra_key="k",
        patience=1.0,
        transport="tcp",
    )


def test_more_visitors_than_anybody_has_are_not_let_in(
    door: Door, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(doors, "MOST_VISITORS", 3)
    inside = [Stranger(door) for _ in range(3)]
    until(lambda: len(door._visitors) == 3)
    for _ in range(5):
        assert Stranger(door).read_to_the_end() == b""
    assert len(door._visitors) == 3
    assert caplog.text.count("3 decode workers are connected, others are not let in") == 1
    inside.pop().socket.close()
    until(lambda: len(door._visitors) == 2)
    late = Stranger(door)
    late.say(HELLO)
    until(lambda: greeted(door))


@pytest.mark.parametrize(
    "words",
    [
        struct.pack("!i", LONGEST_HELLO + 1),
        struct.pack("!iQ", -1, 2**62),
        struct.pack("!i", -7),
        struct.pack("!i", 40) + os.urandom(40),
        struct.pack("!i", 6) + b"\xc1" * 6,  # no value of MessagePack
    ],
    ids=["long", "endless", "negative", "noise", "never used"],
)
def test_a_first_word_that_is_none_ends_the_visit(door: Door, words: bytes) -> None:
    stranger = Stranger(door)
    stranger.socket.sendall(words)
    stranger.read_to_the_end()
    until(lambda: not door._visitors)


def test_a_text_that_is_no_text_ends_the_visit(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    unexpected: list[Any] = []
    monkeypatch.setattr("threading.excepthook", unexpected.append)
    stranger = Stranger(door)
    stranger.say(HELLO)
    stranger.send(
        msgspec.msgpack.encode(prefill_of(1)).replace(b"extra_key\xa1k", b"extra_key\xa1\xff")
    )
    stranger.read_to_the_end()
    until(lambda: not door._visitors)
    assert not unexpected


def test_a_visitor_that_reads_nothing_is_cut_off(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "_MOST_UNSENT", 100)
    stranger = Stranger(door)
    stranger.say(HELLO)
    (visitor,) = _once(lambda: greeted(door))

    def talk() -> bool:
        for number in range(1000):
            visitor.send(Load(waiting_tokens=number))
        assert visitor._outgoing.qsize() <= 101
        return not door._visitors

    until(talk)


def _once(make: Callable[[], list[Any]]) -> list[Any]:
    found: list[Any] = []
    until(lambda: found.extend(make()) or found)
    return found


def test_a_greeting_goes_out_before_any_answer_to_what_is_heard() -> None:
    """The other side may have spoken, and been answered, before its channel is even returned."""

    def answer(channel: Channel[Any], message: Any) -> None:
        if message is not None:
            channel.send(Hello(protocol=0, fingerprint="an answer"))

    frame = msgspec.msgpack.encode(WELCOME)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for _ in range(50):
            far = socket.create_connection(listener.getsockname(), timeout=20)
            far.sendall(struct.pack("!i", len(frame)) + frame)
            channel: Channel[Any] = Channel(listener.accept()[0], Welcome, answer, HELLO)
            heard = b""
            while b"answer" not in heard:
                heard += far.recv(65536)
            assert b"Model" in heard.split(b"answer")[0]
            channel.close()
            far.close()


def test_a_connection_for_which_there_is_no_thread_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of its two threads the second one cannot be had."""
    start, started = threading.Thread.start, []

    def only_one(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    heard: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        far = socket.create_connection(listener.getsockname(), timeout=20)
        near = listener.accept()[0]
        with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="new thread"):
            patch.setattr(threading.Thread, "start", only_one)
            Channel(near, Welcome, lambda _, message: heard.append(message))
        assert far.recv(1) == b""
        until(lambda: heard == [None])
        far.close()


# -- the decode worker's side ----------------------------------------------------------------------


def by_tcp() -> Transports:
    return take_blocks("tcp", HELLO.fingerprint, [])


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_RETRY_SECONDS", "_REFUSED_SECONDS"):
        monkeypatch.setattr(peer_module, name, 0.02)


def test_a_prefill_worker_that_accepts_and_says_nothing_is_tried_again(
    impatient: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(peer_module, "WELCOME_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peers = Peers(
            [f"127.0.0.1:{listener.getsockname()[1]}"], HELLO.fingerprint, Bell(), by_tcp()
        )
        visits = [listener.accept()[0] for _ in range(3)]
        assert not peers.all[0].ready
        # From now on it greets: the last visit, and those after it if that one was given up.
        monkeypatch.setattr(peer_module, "WELCOME_SECONDS", 60)
        listener.settimeout(0.02)
        frame = msgspec.msgpack.encode(WELCOME)

        def is_greeted() -> bool:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                visits[-1].sendall(struct.pack("!i", len(frame)) + frame)
            with contextlib.suppress(TimeoutError):
                visits.append(listener.accept()[0])
            peers.take()
            return peers.all[0].ready

        until(is_greeted)
    assert caplog.text.count("cannot be asked: it does not greet as a prefill worker does") == 1
    peers.close()
    for visit in visits:
        visit.close()


@pytest.mark.parametrize(
    ("length", "trouble"),
    [
        (LONGEST_HELLO, ""),  # of a library that has much memory to tell of
        (LONGEST_WELCOME, "it does not greet as a prefill worker does"),
    ],
)
def test_a_prefill_workers_greeting_may_be_long(impatient: None, length: int, trouble: str) -> None:
    offers = [*OFFERS, Offer(transport="nixl", address=b"x" * length)]
    long = msgspec.structs.replace(WELCOME, offers=offers)
    door = Door("127.0.0.1:0", Bell())
    door.open(long)
    peers = Peers([door.address], HELLO.fingerprint, Bell(), by_tcp())
    (peer,) = peers.all
    until(lambda: peers.take() or peer.ready or peer.trouble)
    assert (peer.ready, peer.trouble) == (not trouble, trouble)
    peers.close()
    door.close()


def test_another_version_is_told_by_its_number(impatient: None) -> None:
    """Whatever else it says: the first version greeted with a port."""
    old = {"type": "welcome", "protocol": 1, "fingerprint": HELLO.fingerprint, "transfer_port": 5}
    frame = msgspec.msgpack.encode(old)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        peers = Peers([address], HELLO.fingerprint, Bell(), by_tcp())
        visit = listener.accept()[0]
        visit.sendall(struct.pack("!i", len(frame)) + frame)
        with pytest.raises(MismatchError, match="install the same version of rtp-llm on both"):
            wait_for_all(peers, 60)
        visit.close()


def test_nobody_there_is_logged_once(impatient: None, caplog: pytest.LogCaptureFixture) -> None:
    with kept_port() as port:
        address = f"127.0.0.1:{port}"
        peers = Peers([address], HELLO.fingerprint, Bell(), by_tcp())
        until(lambda: "Connection refused" in peers.all[0].trouble)
        time.sleep(0.2)
        assert caplog.text.count(f"prefill worker {address} cannot be asked: ") == 1
        peers.close()


def test_other_blocks_are_refused_in_words_and_logged_once(
    impatient: None, door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    peers = Peers([door.address], "Model tp=2", Bell(), by_tcp())
    with pytest.raises(MismatchError) as raised:
        wait_for_all(peers, 20)
    *_, there, here, why = str(raised.value).splitlines()
    assert "Model tp=1" in there and "Model tp=2" in here
    assert "tp is 1 there and 2 here: start both with as many tensor-parallel ranks" in why
    peers = Peers([door.address], "Model tp=2", Bell(), by_tcp())
    began = len(caplog.records)
    until(lambda: peers.take() or caplog.text.count("has other blocks") > 8)
    assert sum("its blocks are not ours" in each.message for each in caplog.records[began:]) == 1
    peers.close()
