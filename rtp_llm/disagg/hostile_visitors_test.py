"""Who comes to the door and does not behave costs a bounded amount for a bounded time."""

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
from rtp_llm.disagg import channel as channels
from rtp_llm.disagg import door as doors
from rtp_llm.disagg import mailbox
from rtp_llm.disagg.channel import Bell, Channel
from rtp_llm.disagg.door import Door, Visitor
from rtp_llm.disagg.messages import LONGEST_HELLO, Hello, Load, Ping, Welcome
from rtp_llm.disagg.visitors_for_tests import HELLO, WELCOME, Stranger, prefill_of, until


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    monkeypatch.setattr(doors, "_LOOK_SECONDS", 0.02)
    made = Door("127.0.0.1:0", Bell())
    made.open(WELCOME)
    yield made
    made.close()


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
    until(lambda: door.visitors == 1)
    assert not door._strangers
    guest.say(HELLO)
    until(lambda: greeted(door))


def test_only_guests_are_told_that_we_are_there(door: Door) -> None:
    guest, stranger = Stranger(door), Stranger(door)
    guest.say(HELLO)
    heard = b""
    for number in range(1, 4):
        guest.say(Ping())
        while heard.count(b"pong") < number:  # no engine took anything yet
            heard += guest.socket.recv(65536)
    assert [message for _, message in door.take()] == [HELLO]
    stranger.say(Ping())
    assert b"pong" not in stranger.read_to_the_end()


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
    until(lambda: not door.visitors)
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
    until(lambda: not door.visitors)
    assert not door.take()
    assert len(caplog.records) == 2


@pytest.mark.parametrize(
    ("bound", "limit", "said", "length"),
    [("MOST_WAITING", 10, 200, 50_000), ("MOST_WAITING_BYTES", 2**18, 200, 50_000)],
)
def test_who_says_more_than_the_engine_takes_is_not_read_on(
    door: Door, monkeypatch: pytest.MonkeyPatch, bound: str, limit: int, said: int, length: int
) -> None:
    """Nothing is lost, and nobody else waits for it."""
    monkeypatch.setattr(mailbox, bound, limit)
    frames = [msgspec.msgpack.encode(prefill_of(length, name)) for name in range(said)]
    most = 11 if bound == "MOST_WAITING" else limit // len(frames[0]) + 1
    talker, other = Stranger(door), Stranger(door)
    for each in (talker, other):
        each.say(HELLO)
    _once(lambda: greeted(door) if len(door._guests) > 1 else [])
    talking = threading.Thread(target=lambda: [talker.send(frame) for frame in frames])
    talking.start()
    until(lambda: len(door._messages._letters) >= most)
    other.say(HELLO)
    until(lambda: len(door._messages._letters) > most)
    time.sleep(0.1)
    assert len(door._messages._letters) == most + 1 and talking.is_alive()
    heard: list[Any] = []
    until(lambda: heard.extend(message for _, message in door.take()) or len(heard) > said)
    heard.remove(HELLO)
    assert [message.name for message in heard] == list(range(said))
    talking.join()


def test_a_closed_door_waits_for_nobody_to_be_read(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "MOST_WAITING", 1)
    talker = Stranger(door)
    for _ in range(5):
        talker.say(HELLO)
    until(lambda: door._messages._letters)
    door.close()
    until(lambda: not door.visitors)


def test_both_sides_are_shown_as_they_are_called() -> None:
    """IPv6 has brackets around it."""
    try:
        door = Door("[::1]:0", Bell())
    except OSError:
        pytest.skip("this machine has no IPv6")
    door.open(WELCOME)
    host, port = split_address("", door.address)
    assert host == "::1" and door.address == f"[::1]:{port}"
    guest = Stranger(door)
    guest.say(HELLO)
    (visitor,) = _once(lambda: greeted(door))
    assert visitor.peer == f"[::1]:{guest.socket.getsockname()[1]}"
    door.close()


def test_more_visitors_than_anybody_has_are_not_let_in(
    door: Door, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(doors, "MOST_VISITORS", 3)
    monkeypatch.setattr(doors, "FAIR_SECONDS", 600)
    inside = [Stranger(door) for _ in range(3)]
    until(lambda: door.visitors == 3)
    for _ in range(5):
        assert Stranger(door).read_to_the_end() == b""
    assert door.visitors == 3
    assert caplog.text.count("3 decode workers are connected, others are not let in") == 1
    inside.pop().socket.close()
    until(lambda: door.visitors == 2)
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
    until(lambda: not door.visitors)


def test_a_text_that_is_no_text_ends_the_visit(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    unexpected: list[Any] = []
    monkeypatch.setattr("threading.excepthook", unexpected.append)
    stranger = Stranger(door)
    stranger.say(HELLO)
    stranger.send(
        msgspec.msgpack.encode(prefill_of(1)).replace(b"extra_key\xa1k", b"extra_key\xa1\xff")
    )
    stranger.read_to_the_end()
    until(lambda: not door.visitors)
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
        return not door.visitors

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
