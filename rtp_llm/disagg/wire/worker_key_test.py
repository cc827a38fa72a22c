# SPDX-License-Identifier: Apache-2.0
"""Who has the worker key is let in; who has not, or says nothing, costs little for a short time."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rtp_llm.config.settings import Settings
from rtp_llm.disagg import build as build_module
from rtp_llm.disagg.decode import peers as peer_module
from rtp_llm.disagg.decode.peers import MismatchError, Peers, wait_for_all
from rtp_llm.disagg.prefill import listener as listener_module
from rtp_llm.disagg.prefill.listener import Listener
from rtp_llm.disagg.transports.registry import take_blocks
from rtp_llm.disagg.wire import rate_limited_log as log
from rtp_llm.disagg.wire.messages import NONCE_BYTES, Challenge, Proof, Response
from rtp_llm.disagg.wire.worker_key import WorkerKey, fresh_nonce
from rtp_llm.engine.waker import Waker
from rtp_llm.testing.disagg.raw_peers import HELLO, WELCOME, RawPeer, until
from rtp_llm.testing.disagg.workers import SIZES, Pair, prompt
from rtp_llm.testing.kept_port import kept_port
from rtp_llm.testing.models.transformers_models import save_model

KEY = WorkerKey(b"a key of at least sixteen bytes")
OTHER = WorkerKey(b"another key of many more bytes")


@contextlib.contextmanager
def listener_with(key: WorkerKey | None) -> Iterator[Listener]:
    made = Listener("127.0.0.1:0", Waker(), key)
    made.open(WELCOME)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def peers_of(address: str, key: WorkerKey | None) -> Iterator[Peers]:
    transports = take_blocks("tcp", HELLO.fingerprint, [])
    made = Peers([address], HELLO.fingerprint, Waker(), transports, key)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "_LOOK_SECONDS", 0.02)
    for name in ("_RETRY_SECONDS", "_REFUSED_SECONDS"):
        monkeypatch.setattr(peer_module, name, 0.02)


def challenge_of(raw_peer: RawPeer) -> Challenge:
    return msgspec.msgpack.decode(frame_of(raw_peer), type=Challenge)


def frame_of(raw_peer: RawPeer) -> bytes:
    (length,) = struct.unpack("!i", exactly(raw_peer.socket, 4))
    return exactly(raw_peer.socket, length)


def exactly(connected: socket.socket, size: int) -> bytes:
    taken = b""
    while len(taken) < size:
        part = connected.recv(size - len(taken))
        assert part, "it was disconnected"
        taken += part
    return taken


def response_to(challenge: Challenge, key: WorkerKey = KEY, side: Any = "decode") -> Response:
    nonce = fresh_nonce()
    return Response(nonce=nonce, mac=key.proof(side, challenge.nonce, nonce))


def test_workers_with_the_same_key_find_each_other() -> None:
    with listener_with(KEY) as listener, peers_of(listener.address, KEY) as peers:
        wait_for_all(peers, 20)
        assert peers.all[0].ready
        until(lambda: [message for _, message in listener.take()] == [HELLO])


@pytest.mark.parametrize(
    ("prefill", "decode", "told", "logged"),
    [
        (KEY, OTHER, "it does not take the key of this worker", "has another worker key"),
        (KEY, None, "it has a worker key and this worker has none", ""),
        (None, KEY, "it has no worker key and this worker has one", ""),
    ],
    ids=["wrong", "none here", "none there"],
)
def test_other_keys_are_an_error_at_the_start(
    prefill: WorkerKey | None,
    decode: WorkerKey | None,
    told: str,
    logged: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        listener_with(prefill) as listener,
        peers_of(listener.address, decode) as peers,
        pytest.raises(MismatchError, match=told),
    ):
        wait_for_all(peers, 20)
    assert logged in caplog.text
    assert not listener.take()


def test_a_response_is_good_for_one_connection_and_one_side() -> None:
    with listener_with(KEY) as listener:
        honest = RawPeer(listener)
        response = response_to(challenge_of(honest))
        honest.say(response)
        assert isinstance(msgspec.msgpack.decode(frame_of(honest), type=Proof), Proof)
        assert b"welcome" in frame_of(honest)
        replaying, reflecting, keyless, short = (RawPeer(listener) for _ in range(4))
        challenge_of(replaying)
        replaying.say(response)
        reflecting.say(response_to(challenge_of(reflecting), side="prefill"))
        challenge_of(keyless)
        keyless.say(HELLO)
        nonce = challenge_of(short).nonce
        short.say(Response(nonce=b"x", mac=KEY.proof("decode", nonce, b"x")))
        for raw_peer in (replaying, reflecting, keyless, short):
            assert raw_peer.read_to_the_end() == b""  # nothing about the model, nor a proof
        until(lambda: listener.connections == 1)
        assert not listener.take()


def test_proofs_differ_by_key_side_and_nonce() -> None:
    here, there = fresh_nonce(), fresh_nonce()
    proofs = {
        KEY.proof("decode", here, there),
        KEY.proof("prefill", here, there),
        KEY.proof("decode", there, here),
        OTHER.proof("decode", here, there),
    }
    assert len(proofs) == 4 and len(here) == NONCE_BYTES


@pytest.mark.parametrize("proves", [False, True], ids=["nothing", "the wrong"])
def test_a_prefill_worker_must_prove_its_key_too(proves: bool) -> None:
    """It is told nothing by one that was lured to it."""
    heard: list[bytes] = []

    def answer(server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            near = server.accept()[0]
            words: list[msgspec.Struct] = [Challenge(nonce=fresh_nonce())]
            words.append(Proof(mac=bytes(32)) if proves else WELCOME)
            for each in words:
                frame = msgspec.msgpack.encode(each)
                near.sendall(struct.pack("!i", len(frame)) + frame)
            while part := near.recv(4096):
                heard.append(part)

    with socket.create_server(("127.0.0.1", 0)) as server:
        answering = threading.Thread(target=answer, args=(server,))
        answering.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with (
            peers_of(address, KEY) as peers,
            pytest.raises(MismatchError, match="does not prove that it has our key"),
        ):
            wait_for_all(peers, 20)
        answering.join()
    assert b"response" in b"".join(heard) and HELLO.fingerprint.encode() not in b"".join(heard)


def test_half_a_handshake_is_ended_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "HANDSHAKE_SECONDS", 0.1)
    with listener_with(KEY) as listener:
        silent, partial, proven = (RawPeer(listener) for _ in range(3))
        partial.socket.send(b"\0\0\0\x50abc")
        challenge = challenge_of(proven)
        with contextlib.suppress(OSError):  # it may be late already
            proven.say(response_to(challenge))
        for raw_peer in (silent, partial, proven):
            raw_peer.read_to_the_end()
        until(lambda: listener.connections == 0)


def test_five_hundred_silent_clients_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "MAX_CONNECTIONS", 64)
    monkeypatch.setattr(listener_module, "FAIR_SECONDS", 0.01)
    monkeypatch.setattr(listener_module, "HANDSHAKE_SECONDS", 600)
    with listener_with(KEY) as listener:
        threads = threading.active_count()
        raw_peers = [RawPeer(listener) for _ in range(500)]
        until(lambda: listener.connections == 64)
        assert threading.active_count() == threads
        with peers_of(listener.address, KEY) as peers:
            wait_for_all(peers, 20)
            assert peers.all[0].ready
        monkeypatch.setattr(listener_module, "HANDSHAKE_SECONDS", 0)
        until(lambda: listener.connections == 0)
        for raw_peer in raw_peers:
            raw_peer.read_to_the_end()


def test_a_handshake_that_fails_keeps_nobody_else_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*fingerprints: object) -> list[str]:
        raise RuntimeError("a defect")

    monkeypatch.setattr(listener_module, "explain", fail)
    with listener_with(None) as listener:
        other = RawPeer(listener)
        other.say(msgspec.structs.replace(HELLO, fingerprint="another"))
        other.read_to_the_end()
        assert "a defect" in caplog.text
        raw_peer = RawPeer(listener)
        raw_peer.say(HELLO)
        until(lambda: [message for _, message in listener.take()] == [HELLO])


def test_strangers_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    made = log.RateLimitedLog(lambda: now[0])
    for number in range(500):
        made.warn("%s has another worker key", number)
    assert len(caplog.records) == log.MAX_LINES
    now[0] += log.WINDOW_SECONDS
    made.tick()
    assert caplog.records[-1].getMessage() == "490 more lines about connections were left out"
    made.warn("%s has another worker key", 500)
    assert len(caplog.records) == log.MAX_LINES + 2


def test_newcomers_are_refused_while_all_have_just_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(listener_module, "FAIR_SECONDS", 600)
    with listener_with(KEY) as listener:
        inside = [RawPeer(listener) for _ in range(2)]
        for each in inside:
            challenge_of(each)
        assert RawPeer(listener).read_to_the_end() == b""
        assert listener.connections == 2


def test_whole_workers_with_a_key_and_both_ports(tmp_path: Path) -> None:
    """Blocks come by the port that was set, from who has the key."""
    model = tmp_path / "model"
    model.mkdir()
    save_model(model, "mistral")
    key = tmp_path / "key"
    key.write_text("0123456789abcdef\n")
    key.chmod(0o600)
    with kept_port() as control, kept_port() as blocks:
        pair = Pair(
            model,
            **SIZES,
            worker_key_file=str(key),
            kv_transport="tcp",
            prefill={
                "prefill_address": f"127.0.0.1:{control}",
                "kv_transfer_address": f"127.0.0.1:{blocks}",
            },
        )
        (peer,) = pair.peers.all
        assert peer.address == f"127.0.0.1:{control}"
        assert peer.transfer_addresses == (f"tcp://127.0.0.1:{blocks}",)
        pair.tokens(prompt(30))
        assert pair.decode.transfers()["delivered"] == 1 and not pair.decode.failures()
        pair.settle()
        pair.close()


@pytest.mark.parametrize(
    ("changed", "warns"),
    [
        ({"prefill_address": "127.0.0.1:1"}, False),
        ({"prefill_address": "localhost:1"}, False),
        ({"prefill_address": "[::1]:1"}, False),
        ({"prefill_address": "0.0.0.0:1"}, True),
        ({"kv_transfer_address": "10.0.0.5:1"}, True),
        ({"prefill_address": "0.0.0.0:1", "worker_key_file": "key"}, False),
    ],
    ids=str,
)
def test_ports_that_are_open_to_others_are_warned_of(
    changed: dict[str, Any], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    build_module._warn_if_open(Settings(role="prefill", **changed))
    assert ("set --worker-key-file" in caplog.text) is warns


@pytest.mark.parametrize(
    ("address", "host", "told"),
    [
        ("10.0.0.5:9", "10.0.0.5", b"9"),
        ("0.0.0.0:9", "10.0.0.5", b"9"),
        ("10.0.0.6:9", "10.0.0.5", b"10.0.0.6:9"),
        ("[::2]:9", "10.0.0.5", b"[::2]:9"),
    ],
)
def test_blocks_may_come_from_another_address(address: str, host: str, told: bytes) -> None:
    from rtp_llm.disagg.transports.client import _place
    from rtp_llm.disagg.transports.registry import _announced

    assert _announced(address, host) == told
    expected = address.replace("0.0.0.0", "10.0.0.5")
    assert _place("10.0.0.5", told) == expected
