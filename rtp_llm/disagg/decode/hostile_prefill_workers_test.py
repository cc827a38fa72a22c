# SPDX-License-Identifier: Apache-2.0
"""What is no prefill worker of ours, or sends no handshake of one, costs a decode worker little."""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import threading
import time
from typing import Any

import msgspec
import pytest

from rtp_llm.disagg.decode import peers as peer_module
from rtp_llm.disagg.decode.peers import MismatchError, Peers, wait_for_all
from rtp_llm.disagg.prefill.listener import Listener
from rtp_llm.disagg.transports.client import TransportClient
from rtp_llm.disagg.transports.registry import take_blocks
from rtp_llm.disagg.wire import bounded_queue as queue
from rtp_llm.disagg.wire.messages import LONGEST_HELLO, LONGEST_WELCOME, Failed, Offer
from rtp_llm.engine.waker import Waker
from rtp_llm.testing.disagg.raw_peers import HELLO, OFFERS, WELCOME, until
from rtp_llm.testing.kept_port import kept_port


def by_tcp() -> TransportClient:
    return take_blocks("tcp", HELLO.fingerprint, [])


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_RETRY_SECONDS", "_REFUSED_SECONDS"):
        monkeypatch.setattr(peer_module, name, 0.02)


def test_a_prefill_worker_that_accepts_and_says_nothing_is_tried_again(
    impatient: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(peer_module, "WELCOME_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        peers = Peers(
            [f"127.0.0.1:{server.getsockname()[1]}"], HELLO.fingerprint, Waker(), by_tcp()
        )
        visits = [server.accept()[0] for _ in range(3)]
        assert not peers.all[0].ready
        # From now on it sends its handshake: to the last visit, and to later ones.
        monkeypatch.setattr(peer_module, "WELCOME_SECONDS", 60)
        server.settimeout(0.02)
        frame = msgspec.msgpack.encode(WELCOME)

        def is_admitted() -> bool:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                visits[-1].sendall(struct.pack("!i", len(frame)) + frame)
            with contextlib.suppress(TimeoutError):
                visits.append(server.accept()[0])
            peers.take()
            return peers.all[0].ready

        until(is_admitted)
    assert caplog.text.count("cannot be asked: it sent no valid prefill-worker handshake") == 1
    peers.close()
    for visit in visits:
        visit.close()


@pytest.mark.parametrize(
    ("length", "trouble"),
    [
        (LONGEST_HELLO, ""),  # of a library that has much memory to tell of
        (LONGEST_WELCOME, "it sent no valid prefill-worker handshake"),
    ],
)
def test_the_welcome_may_be_long(impatient: None, length: int, trouble: str) -> None:
    offers = [*OFFERS, Offer(transport="nixl", address=b"x" * length)]
    long = msgspec.structs.replace(WELCOME, offers=offers)
    listener = Listener("127.0.0.1:0", Waker())
    listener.open(long)
    peers = Peers([listener.address], HELLO.fingerprint, Waker(), by_tcp())
    (peer,) = peers.all
    until(lambda: peers.take() or peer.ready or peer.trouble)
    assert (peer.ready, peer.trouble) == (not trouble, trouble)
    peers.close()
    listener.close()


def test_another_version_is_reported_by_its_number(impatient: None) -> None:
    """Whatever else it says: the first version's handshake had a port."""
    old = {"type": "welcome", "protocol": 1, "fingerprint": HELLO.fingerprint, "transfer_port": 5}
    frame = msgspec.msgpack.encode(old)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        peers = Peers([address], HELLO.fingerprint, Waker(), by_tcp())
        visit = server.accept()[0]
        visit.sendall(struct.pack("!i", len(frame)) + frame)
        with pytest.raises(MismatchError, match="install the same version of rtp-llm on both"):
            wait_for_all(peers, 60)
        visit.close()


def test_nobody_there_is_logged_once(impatient: None, caplog: pytest.LogCaptureFixture) -> None:
    with kept_port() as port:
        address = f"127.0.0.1:{port}"
        peers = Peers([address], HELLO.fingerprint, Waker(), by_tcp())
        until(lambda: "Connection refused" in peers.all[0].trouble)
        time.sleep(0.2)
        assert caplog.text.count(f"prefill worker {address} cannot be asked: ") == 1
        peers.close()


def test_other_blocks_are_refused_in_words_and_logged_once(
    impatient: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    listener = Listener("127.0.0.1:0", Waker())
    listener.open(WELCOME)
    peers = Peers([listener.address], "Model tp=2", Waker(), by_tcp())
    with pytest.raises(MismatchError) as raised:
        wait_for_all(peers, 20)
    *_, there, here, why = str(raised.value).splitlines()
    assert "Model tp=1" in there and "Model tp=2" in here
    assert "tp is 1 there and 2 here: start both with as many tensor-parallel ranks" in why
    peers = Peers([listener.address], "Model tp=2", Waker(), by_tcp())
    began = len(caplog.records)
    until(lambda: peers.take() or caplog.text.count("has other blocks") > 8)
    assert sum("its blocks are not ours" in each.message for each in caplog.records[began:]) == 1
    peers.close()
    listener.close()


@pytest.mark.parametrize(
    ("ranks", "why"),
    [
        ([0, 2], "some of its ranks only"),
        ([0, 0], "some of its ranks only"),
        ([-1], "some of its ranks only"),
        ([0, 1, 2], "not 3"),
    ],
)
def test_ranks_that_make_no_sense_are_refused(ranks: list[int], why: str) -> None:
    def only_four(count: int) -> None:
        if 4 % count:
            raise ValueError(f"not {count}")

    offers = [Offer(transport="tcp", address=b"1", rank=rank) for rank in ranks]
    listener = Listener("127.0.0.1:0", Waker())
    listener.open(msgspec.structs.replace(WELCOME, offers=offers))
    others = [listener.address], HELLO.fingerprint, Waker(), by_tcp()
    peers = Peers(*others, check_ranks=only_four)
    with pytest.raises(MismatchError, match=f"cannot be used, .*{why}"):
        wait_for_all(peers, 20)
    listener.close()


@pytest.mark.parametrize(("bound", "limit"), [("MAX_WAITING", 1000), ("MAX_WAITING_BYTES", 10**6)])
def test_who_says_more_than_the_engine_takes_is_not_read_on(
    monkeypatch: pytest.MonkeyPatch, bound: str, limit: int
) -> None:
    """Nothing is lost: what was said is heard when the engine comes to it."""
    monkeypatch.setattr(queue, bound, limit)
    said = 20_000
    names, text = range(2**40, 2**40 + said), "x" * 1000
    failed = [Failed(name=name, kind="internal", message=text) for name in names]
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        peers = Peers([address], HELLO.fingerprint, Waker(), by_tcp())
        visit = server.accept()[0]
        say(visit, WELCOME)
        until(lambda: peers.take() or peers.all[0].ready)
        talking = threading.Thread(target=lambda: [say(visit, each) for each in failed])
        talking.start()
        size = 1 if bound == "MAX_WAITING" else len(msgspec.msgpack.encode(failed[-1]))
        until(lambda: len(peers._messages._items) * size > limit)
        time.sleep(0.1)
        assert (len(peers._messages._items) - 1) * size <= limit and talking.is_alive()
        heard: list[Any] = []
        until(lambda: heard.extend(message for _, message in peers.take()) or len(heard) == said)
        assert [message.name for message in heard] == list(names)
        talking.join()
        peers.close()
        visit.close()


def test_nobody_waits_to_be_heard_by_who_has_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "MAX_WAITING", 0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        peers = Peers([address], HELLO.fingerprint, Waker(), by_tcp())
        visit = server.accept()[0]
        say(visit, WELCOME)
        until(lambda: len(peers._messages._items))
        peers.close()
        visit.close()
        until(lambda: not any(each.name == address for each in threading.enumerate()))


def say(visit: socket.socket, message: msgspec.Struct) -> None:
    frame = msgspec.msgpack.encode(message)
    visit.sendall(struct.pack("!i", len(frame)) + frame)
