# SPDX-License-Identifier: Apache-2.0
"""Prefill workers that come back, stop, are slow or are several; and no block left anywhere."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rtp_llm.config.roles import split_address
from rtp_llm.disagg.decode import peers as peer_module
from rtp_llm.disagg.wire.messages import PROTOCOL, Offer, Welcome
from rtp_llm.testing.disagg.workers import SIZES, Pair, Worker, prompt
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.kept_port import kept_port
from rtp_llm.testing.models.transformers_models import save_model

pytest_plugins = "rtp_llm.testing.disagg.fixtures"


@pytest.fixture
def pair(folder: Path) -> Iterator[Pair]:
    with kept_port() as port:  # for every prefill worker that comes back
        made = Pair(folder, **SIZES, prefill={"prefill_address": f"127.0.0.1:{port}"})
        yield made
        made.settle()
        made.close()


def restart(pair: Pair, folder: Path) -> None:
    """The prefill worker ends as a killed one does; another one starts at its address."""
    address = pair.prefill.built.ready.prefill_address
    pair.prefill.connector.close()
    pair.prefill = Worker(folder, role="prefill", prefill_address=address, **SIZES)


def delivered(pair: Pair) -> float:
    return pair.decode.transfers().get("delivered", 0)


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_a_prefill_worker_that_comes_back_is_asked_again(
    pair: Pair, fused: TinyEngine, folder: Path, steps: int
) -> None:
    (peer,) = pair.peers.all
    tokens = prompt(70, seed=steps)
    requests = [pair.decode.add([*tokens, number]) for number in range(10, 13)]
    for _ in range(steps):
        pair.step()
    restart(pair, folder)
    pair.until(lambda: pair.finished(*requests))
    for number, request in enumerate(requests, 10):
        assert pair.decode.outcomes[request].tokens == fused.tokens([*tokens, number])
    pair.until(lambda: peer.ready)
    assert peer.requested_tokens == 0
    before = delivered(pair)
    assert pair.tokens(prompt(33, seed=90)) == fused.tokens(prompt(33, seed=90))
    assert delivered(pair) == before + 1


def test_one_that_comes_back_with_another_model_is_left_alone_until_it_has_ours(
    pair: Pair, fused: TinyEngine, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_module, "_REFUSED_SECONDS", 0.05)
    save_model(tmp_path, "qwen3", seed=1)
    (peer,) = pair.peers.all
    tokens = prompt(33, seed=90)
    assert pair.tokens(tokens) == fused.tokens(tokens)
    restart(pair, tmp_path)
    pair.until(lambda: peer.refused is not None)
    assert "serve the same model folder on both" in peer.refused and not peer.ready
    before = delivered(pair)
    assert pair.tokens(tokens, key="other") == fused.tokens(tokens)
    assert delivered(pair) == before
    assert "prompts" not in pair.prefill.transfers()
    restart(pair, folder)
    pair.until(lambda: peer.ready)
    assert peer.refused is None
    assert pair.tokens(tokens, key="a third") == fused.tokens(tokens)
    assert delivered(pair) == before + 1


class StoppedWorker:
    """A prefill worker that does nothing after its handshake, as a stopped process: its system
    still takes connections."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._visits: list[socket.socket] = []

    def send_welcome(self, fingerprint: str) -> None:
        # Blocks are asked for where nobody answers either.
        offers = [Offer(transport="tcp", address=str(self.port).encode())]
        welcome = Welcome(protocol=PROTOCOL, fingerprint=fingerprint, offers=offers)
        frame = msgspec.msgpack.encode(welcome)
        self._visits.append(self._listener.accept()[0])
        self._visits[-1].sendall(struct.pack("!i", len(frame)) + frame)

    def close(self) -> None:
        for each in (*self._visits, self._listener):
            each.close()


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Iterator[StoppedWorker]:
    monkeypatch.setattr("rtp_llm.disagg.build._HANDSHAKE_SECONDS", 0.0)
    monkeypatch.setattr(peer_module, "QUESTION_SECONDS", 0.05)
    made = StoppedWorker()
    yield made
    made.close()


def test_a_worker_that_stopped_is_waited_for_once(
    folder: Path, fused: TinyEngine, stopped: StoppedWorker
) -> None:
    decode = Worker(folder, role="decode", prefill_workers=stopped.address, **SIZES)
    peers: Any = decode.connector._peers
    stopped.send_welcome(peers._hello.fingerprint)
    run(decode, lambda: peers.all[0].ready)
    tokens = [prompt(30, seed=number) for number in range(3)]
    requests = [decode.add(each) for each in tokens]
    run(decode, lambda: all(decode.outcomes[each].finish for each in requests))
    for request, each in zip(requests, tokens, strict=True):
        assert decode.outcomes[request].tokens == fused.tokens(each)
    assert decode.failures() == {"peer_lost": 3}
    assert not peers.all[0].ready
    again = decode.add(prompt(31))
    run(decode, lambda: bool(decode.outcomes[again].finish))
    assert decode.transfers()["asked"] == 3  # nobody waited for it any more
    run(decode, decode.is_idle)
    decode.base.engine.check_integrity()
    decode.connector.close()


def test_another_worker_is_asked_when_one_has_stopped(
    folder: Path, fused: TinyEngine, stopped: StoppedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(folder, **SIZES)
    address = f"{stopped.address},{pair.prefill.built.ready.prefill_address}"
    pair.decode.connector.close()
    pair.decode = Worker(folder, role="decode", prefill_workers=address, **SIZES)
    stopped.send_welcome(pair.peers._hello.fingerprint)
    pair.until(lambda: all(peer.ready for peer in pair.peers.all))
    request = pair.decode.add(prompt(70))
    pair.until(lambda: pair.decode.transfers().get("retries"))
    monkeypatch.setattr(peer_module, "QUESTION_SECONDS", 60.0)  # the other one may take its time
    pair.until(lambda: pair.finished(request))
    assert pair.decode.outcomes[request].tokens == fused.tokens(prompt(70))
    assert pair.decode.failures() == {"peer_lost": 1}
    assert delivered(pair) == 1 and "fallbacks" not in pair.decode.transfers()
    pair.settle()
    pair.close()


def test_a_worker_in_a_long_step_says_that_it_is_there(
    folder: Path, fused: TinyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_module, "QUESTION_SECONDS", 0.01)
    monkeypatch.setattr(peer_module, "QUESTIONS", 60_000)  # however slow this machine is
    pair = Pair(folder, **SIZES)
    (peer,) = pair.peers.all
    request = pair.decode.add(prompt(70))
    for _ in range(8):
        moment = time.monotonic()
        run(pair.decode, lambda since=moment: peer.heard_at > since)
    pair.until(lambda: pair.finished(request))
    assert pair.decode.outcomes[request].tokens == fused.tokens(prompt(70))
    assert delivered(pair) == 1 and not pair.decode.failures()
    pair.settle()
    pair.close()


def run(worker: Worker, condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never comes"
        worker.step()
        time.sleep(0.0005)


class SlowWire:
    """Passes on what goes through it in small pieces, ``pause`` seconds after each."""

    def __init__(self, target: str, pause: float) -> None:
        self._target, self._pause = split_address("", target), pause
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._ends = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, far = self._listener.accept()[0], socket.create_connection(self._target)
                self._ends += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(8192):
                sink.sendall(piece)
                time.sleep(self._pause)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for each in self._ends:
            each.close()


@pytest.mark.parametrize(("load_timeout", "arrives"), [(30.0, True), (0.1, False)])
def test_a_slow_wire_is_waited_for_as_long_as_it_may(
    folder: Path, fused: TinyEngine, load_timeout: float, arrives: bool
) -> None:
    pair = Pair(folder, **SIZES, kv_load_timeout=load_timeout)
    (peer,) = pair.peers.all
    (address,) = peer.transfer_addresses
    wire = SlowWire(address.removeprefix("tcp://"), pause=0.01 if arrives else 0.1)
    peer.transfer_addresses = (f"tcp://{wire.address}",)
    prompts = [prompt(60, seed=number) for number in range(3)]
    requests = [pair.decode.add(tokens) for tokens in prompts]
    pair.until(lambda: pair.finished(*requests))
    for request, tokens in zip(requests, prompts, strict=True):
        assert pair.decode.outcomes[request].tokens == fused.tokens(tokens)
    if arrives:
        assert delivered(pair) == 3 and not pair.decode.failures()
    else:
        assert pair.decode.failures().keys() == {"buffer_timeout"}
        assert pair.decode.transfers()["fallbacks"] > 0
    pair.settle()
    pair.close()
    wire.close()


def test_sequences_that_grow_while_prompts_load_wait_and_lose_nothing(
    folder: Path, fused: TinyEngine
) -> None:
    """Two loads own half of the blocks and get nowhere; what decodes meanwhile uses the rest up."""
    pair = Pair(folder, **SIZES, max_seq_len=100, kv_cache_mem_mb=1)
    scheduler = pair.decode.scheduler
    loading = [pair.decode.add(prompt(80, seed=50 + number)) for number in range(2)]
    run(pair.decode, lambda: scheduler.stats()["held"] == 2)
    own = [
        pair.decode.add(prompt(20, seed=60 + number), n=2, max_tokens=70, ignore_eos=True)
        for number in range(3)
    ]
    run(pair.decode, lambda: scheduler.stats()["free_blocks"] < 3)
    assert scheduler.stats()["held"] == 2 and not pair.decode.failures()
    for _ in range(20):
        pair.decode.step()
    pair.until(lambda: pair.finished(*loading) and pair.decode.is_idle())
    for number, request in enumerate(loading):
        assert pair.decode.outcomes[request].tokens == fused.tokens(prompt(80, seed=50 + number))
    for number, request in enumerate(own):
        alone = fused.tokens(prompt(20, seed=60 + number), max_tokens=70, ignore_eos=True)
        assert sorted(pair.decode.outcomes[request].tokens) == sorted(alone * 2)
    assert delivered(pair) == 2
    pair.settle()
    pair.close()


class Trio:
    """A decode worker and two prefill workers."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.there = [
            Worker(folder, role="prefill", prefill_address="127.0.0.1:0", **SIZES) for _ in range(2)
        ]
        addresses = ",".join(str(each.built.ready.prefill_address) for each in self.there)
        self.decode = Worker(folder, role="decode", prefill_workers=addresses, **SIZES, **settings)
        self.peers: Any = self.decode.connector._peers
        self.until(lambda: all(peer.ready for peer in self.peers.all))

    def until(self, condition: Any) -> None:
        def step() -> bool:
            for each in self.there:
                each.step()
            return bool(condition())

        run(self.decode, step)

    def tokens(self, asked: list[int], **params: Any) -> list[int]:
        request = self.decode.add(asked, **params)
        self.until(lambda: self.decode.outcomes[request].finish)
        self.rest()
        return self.decode.outcomes[request].tokens

    def rest(self) -> None:
        """Every prefill worker has told that it has nothing to do."""
        self.until(lambda: not any(peer.waiting_tokens for peer in self.peers.all))

    def settle(self) -> None:
        """Every block of those that live is back; they end."""
        alive = [*self.there, self.decode]
        self.until(lambda: all(each.is_idle() for each in alive))
        for each in alive:
            each.base.engine.check_integrity()
            each.connector.close()

    def computed(self) -> list[float]:
        """How many prompts each prefill worker was asked for."""
        return [each.transfers().get("prompts", 0) for each in self.there]


def test_of_two_prefill_workers_load_and_prefixes_decide(folder: Path, fused: TinyEngine) -> None:
    trio = Trio(folder)
    trio.tokens(prompt(80, seed=1))
    assert trio.computed() == [1, 0]
    first = trio.decode.add(prompt(60, seed=2))  # the other one was asked for less so far
    second = trio.decode.add(prompt(8, seed=3))  # and now has 60 tokens to compute
    trio.until(lambda: all(trio.decode.outcomes[each].finish for each in (first, second)))
    assert trio.computed() == [2, 1]
    trio.rest()
    # The decode worker's own cache has these beginnings too, and their ends are new to all.
    for seed, length, expected in ((1, 80, [3, 1]), (2, 60, [3, 2])):
        longer = [*prompt(length, seed=seed), *prompt(5, seed=9)]
        assert trio.tokens(longer) == fused.tokens(longer)
        assert trio.computed() == expected
    # When one has died the other is asked, for what it had and for what it knew nothing of.
    trio.there.pop(0).connector.close()
    trio.until(lambda: not trio.peers.all[0].ready)
    for seed in (1, 4):
        asked = [*prompt(80, seed=seed), 7]
        assert trio.tokens(asked) == fused.tokens(asked)
    assert trio.computed() == [4]
    trio.settle()


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_the_other_prefill_worker_is_asked_when_one_dies(
    folder: Path, fused: TinyEngine, steps: int
) -> None:
    """Before it has computed all of the prompt."""
    trio = Trio(folder)
    asked = [(prompt(70, seed=1), {}), (prompt(70, seed=2), {"temperature": 1.5, "seed": 3})]
    requests = [trio.decode.add(tokens, **params) for tokens, params in asked]
    run(trio.decode, lambda: trio.decode.transfers().get("asked") == 2)  # one of each
    for _ in range(steps):
        trio.there[0].step()
    trio.there.pop(0).connector.close()
    trio.until(lambda: all(trio.decode.outcomes[each].finish for each in requests))
    for request, (tokens, params) in zip(requests, asked, strict=True):
        assert trio.decode.outcomes[request].tokens == fused.tokens(tokens, **params)
    counts = trio.decode.transfers()
    assert counts["delivered"] == 2 and "fallbacks" not in counts
    assert (counts["asked"], counts["retries"]) == (3, 1)
    assert sum(trio.decode.failures().values()) == 1
    trio.settle()


def test_each_prefill_worker_is_asked_once(folder: Path, fused: TinyEngine) -> None:
    trio = Trio(folder)
    for each in trio.there:
        admission = each.base.engine._requests._admission
        admission.limits = dataclasses.replace(admission.limits, max_model_len=9)
    assert trio.tokens(prompt(30)) == fused.tokens(prompt(30))
    counts = trio.decode.transfers()
    assert (counts["asked"], counts["retries"], counts["fallbacks"]) == (2, 1, 1)
    assert sum(trio.decode.failures().values()) == 2
    trio.settle()


def test_a_prompt_whose_time_is_over_is_asked_for_no_more(folder: Path, fused: TinyEngine) -> None:
    trio = Trio(folder, prefill_timeout=0.3, kv_load_timeout=0.2)
    request = trio.decode.add(prompt(70))
    run(trio.decode, lambda: trio.decode.outcomes[request].finish)  # nobody else steps
    assert trio.decode.outcomes[request].tokens == fused.tokens(prompt(70))
    counts = trio.decode.transfers()
    assert (counts["asked"], counts["fallbacks"]) == (1, 1) and "retries" not in counts
    trio.until(lambda: all(peer.ready for peer in trio.peers.all))
    trio.settle()
