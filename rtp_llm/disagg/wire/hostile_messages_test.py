# SPDX-License-Identifier: Apache-2.0
"""What the other side says, or fails to say, ends no worker and holds nothing for ever."""

from __future__ import annotations

import dataclasses
import errno
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rtp_llm.config.roles import split_address
from rtp_llm.disagg.prefill.listener import Listener
from rtp_llm.disagg.wire.connection import MessageConnection
from rtp_llm.disagg.wire.messages import (
    PROTOCOL,
    Failed,
    Finished,
    Hello,
    Load,
    Prefill,
    Prefilled,
    ToDecode,
    Welcome,
)
from rtp_llm.engine.waker import Waker
from rtp_llm.request.sampling_params import SamplingParams
from rtp_llm.testing.disagg.workers import SIZES, Pair, prompt

pytest_plugins = "rtp_llm.testing.disagg.fixtures"


@pytest.fixture
def pair(folder: Path, request: Any) -> Iterator[Pair]:
    made = Pair(folder, **SIZES, **getattr(request, "param", {}))
    yield made
    made.settle()
    made.close()


ASKED: dict[str, Any] = {
    "name": 1,
    "prompt_token_ids": prompt(9),
    "params": SamplingParams(),
    "extra_key": "",
    "timeout": 5.0,
    "transport": "tcp",
}


def visit(pair: Pair, heard: list[Any]) -> MessageConnection[ToDecode]:
    """A connection to the prefill worker; what it says goes to ``heard``."""
    address = split_address("", pair.prefill.built.ready.prefill_address or "")
    return MessageConnection(
        pair.peers._loop,
        socket.create_connection(address),
        ToDecode,
        lambda _, message: heard.append(message),
    )


def until(condition: Callable[[], object]) -> None:
    """Wait, without a step of anybody."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never comes"
        time.sleep(0.001)


def handshake(pair: Pair) -> Hello:
    """As its own decode worker says it."""
    hello: Hello = pair.peers._hello
    return hello


@pytest.mark.parametrize("other", [None, {"fingerprint": "another model"}, {"protocol": 0}])
@pytest.mark.parametrize("word", [Prefill(**ASKED), Finished(name=1)], ids=["prefill", "finished"])
def test_who_sends_no_valid_handshake_is_disconnected(
    pair: Pair, word: Prefill | Finished, other: dict[str, Any] | None
) -> None:
    heard: list[Any] = []
    raw_peer = visit(pair, heard)
    if other is not None:
        raw_peer.send(msgspec.structs.replace(handshake(pair), **other))
    raw_peer.send(word)
    pair.until(lambda: None in heard)
    assert all(isinstance(each, Welcome) for each in heard[:-1])  # no answer
    assert "prompts" not in pair.prefill.transfers()
    assert len(pair.tokens(prompt(20))) == 16


def test_a_new_peer_learns_how_many_tokens_wait(pair: Pair) -> None:
    worker: Any = pair.prefill.connector
    pair.until(lambda: len(worker._decode_workers) == 1)  # its own decode worker
    heard: list[list[Any]] = [[], []]
    first, second = (visit(pair, each) for each in heard)
    first.send(handshake(pair))
    first.send(Prefill(**{**ASKED, "prompt_token_ids": prompt(100)}))  # five steps
    pair.until(lambda: bool(worker._prompts))
    until(lambda: Load(waiting_tokens=100) in heard[0])
    second.send(handshake(pair))
    until(lambda: worker._listener._messages._items)
    pair.prefill.step()
    until(lambda: len(heard[1]) > 1)
    assert heard[1][1] == Load(waiting_tokens=100)
    first.close()
    second.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"name": 2**63},
        {"name": -1},
        {"timeout": float("nan")},
        {"transport": "nixl"},
        {"params": SamplingParams(n=2)},
        {"params": SamplingParams(prompt_logprobs=1)},
    ],
    ids=str,
)
def test_what_no_decode_worker_asks_is_refused(pair: Pair, changes: dict[str, Any]) -> None:
    heard: list[Any] = []
    raw_peer = visit(pair, heard)
    raw_peer.send(handshake(pair))
    raw_peer.send(Prefill(**{**ASKED, **changes}))
    pair.until(lambda: any(isinstance(each, Failed) for each in heard))
    raw_peer.close()
    assert len(pair.tokens(prompt(20))) == 16


@pytest.mark.parametrize("wrong", [{"token": -1}, {"token": 2**40}, {"cached_tokens": -5}], ids=str)
def test_a_token_that_is_none_ends_in_a_prefill_here(pair: Pair, wrong: dict[str, int]) -> None:
    expected = pair.tokens(prompt(30))
    connector: Any = pair.decode.connector
    hear = connector._receive

    def twist(peer: Any, message: Any) -> None:
        if isinstance(message, Prefilled):
            fields = {name: getattr(message, name) for name in message.__struct_fields__}
            message = Prefilled(**{**fields, **wrong})
        hear(peer, message)

    connector._receive = twist
    assert pair.tokens(prompt(30), key="another") == expected
    assert pair.decode.failures() == {"invalid_answer": 1}


def test_a_token_that_never_comes_is_not_waited_for(pair: Pair) -> None:
    """All blocks came, and then the prefill worker stops."""
    expected = pair.tokens(prompt(30))
    connector: Any = pair.decode.connector
    hear = connector._receive
    connector._receive = lambda peer, said: isinstance(said, Prefilled | Failed) or hear(peer, said)
    request = pair.decode.add(prompt(30), key="another")
    pair.until(lambda: any(each.loads[0].done for each in connector._own.loads.values()))
    assert not pair.finished(request)
    connector._timeouts = dataclasses.replace(connector._timeouts, prefill=0.1, load=0.1)
    pair.until(lambda: pair.finished(request))
    assert pair.decode.outcomes[request].tokens == expected
    assert pair.decode.failures() == {"prefill_timeout": 1}


def test_blocks_that_come_back_wake_who_waits_for_them(pair: Pair) -> None:
    engine = pair.prefill.base.engine
    engine.blocked = True
    pair.prefill.add(prompt(9))
    engine.kv_blocks.unpin(1)
    assert engine.can_go_on


def test_a_listener_that_cannot_accept_tries_again() -> None:
    listener = Listener("127.0.0.1:0", Waker())
    server: Any = listener._socket

    class Exhausted:
        failures = 2

        def accept(self) -> Any:
            self.failures -= 1
            if self.failures >= 0:
                raise OSError(errno.EMFILE, "too many open files")
            return server.accept()

        def __getattr__(self, name: str) -> Any:
            return getattr(server, name)

    listener._socket = Exhausted()  # type: ignore[assignment]
    listener.open(Welcome(protocol=PROTOCOL, fingerprint="", offers=[]))
    heard: list[Any] = []
    decode_worker: MessageConnection[ToDecode] = MessageConnection(
        listener._loop,
        socket.create_connection(split_address("", listener.address)),
        ToDecode,
        lambda _, message: heard.append(message),
    )
    until(lambda: heard)
    assert isinstance(heard[0], Welcome)
    decode_worker.close()
    listener.close()
