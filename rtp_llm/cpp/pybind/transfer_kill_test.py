# SPDX-License-Identifier: Apache-2.0
"""Workers that are killed at any moment: whoever is left has all its blocks back.

A prefill and a decode worker without models: blocks, and their transfer. Each does what comes over
its pipe, in a process that was forked for it. Blocks that nobody owns are poisoned, and are looked
at before they are given out again: whatever wrote to them meanwhile is found. TRANSFER_KILLS says
how many are killed.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rtp_llm.native import load_runtime

if TYPE_CHECKING:
    from rtp_llm._runtime import Load

KILLS = int(os.environ.get("TRANSFER_KILLS", "200"))
REQUESTS = 6
LAYERS, BLOCKS, BLOCK_BYTES = 6, 96, 20000
POISON = 0xEE
FINGERPRINT = "blocks of a test"
TIMEOUT = 300.0
# How a load may end when prefill is killed meanwhile, or nobody is.
AFTER_DEATH = {"none", "cancelled", "peer_lost", "connect_failed", "send_failed"}
# Starting a process by fork is quick, and safe as long as this one has no threads of its own.
fork = multiprocessing.get_context("fork")


def content(request: str, layer: int, count: int) -> NDArray[np.uint8]:
    """What prefill computes: uint8 [count, BLOCK_BYTES], another one for each layer and request."""
    seed = (hash_of(request) + 31 * layer) % 251
    return ((np.arange(count * BLOCK_BYTES) * 7 + seed) % 251).astype(np.uint8).reshape(count, -1)


def hash_of(request: str) -> int:
    """The same in every process."""
    return sum((place + 1) * ord(letter) for place, letter in enumerate(request))


class Pool:
    """The cache of one worker: uint8 [LAYERS, BLOCKS, BLOCK_BYTES], and which blocks are free."""

    def __init__(self) -> None:
        self.memory = np.full((LAYERS, BLOCKS, BLOCK_BYTES), POISON, dtype=np.uint8)
        self.free = list(range(BLOCKS))

    def take(self, count: int) -> list[int]:
        taken, self.free = self.free[:count], self.free[count:]
        assert len(taken) == count
        assert (self.memory[:, taken] == POISON).all(), "somebody wrote to a block of nobody's"
        return taken

    def give_back(self, blocks: list[int]) -> None:
        self.memory[:, blocks] = POISON
        self.free += blocks

    def entries(self, layer: int, blocks: list[int]) -> NDArray[np.int64]:
        """The rows that name `blocks` of a layer to the transfer."""
        array = np.zeros((len(blocks), 7), dtype=np.int64)
        array[:, 1] = np.arange(len(blocks))
        array[:, 3] = [self.memory[layer, block].ctypes.data for block in blocks]
        array[:, 4:] = 1, BLOCK_BYTES, BLOCK_BYTES
        return array


class PrefillWorker:
    """Computes a layer of every request in turn, and frees a request's blocks once it may."""

    def __init__(self, pipe: Connection) -> None:
        runtime = load_runtime()
        self.pipe, self.pool = pipe, Pool()
        self.store = runtime.CacheStore()
        self.server = runtime.TransferServer(self.store, fingerprint=FINGERPRINT)
        self.owned: dict[str, list[int]] = {}
        self.layers_left: dict[str, int] = {}
        pipe.send(self.server.address)

    def run(self) -> None:
        while True:
            ready = wait([self.pipe, self.store.fileno()], 0 if self.layers_left else None)
            if self.pipe in ready:
                self._obey(*self.pipe.recv())
            for request in self.store.take_released():
                self.pool.give_back(self.owned.pop(request, []))
            for request in list(self.layers_left):
                self._compute(request)

    def _obey(self, command: str, *arguments: Any) -> None:
        if command == "compute":
            request, count = arguments
            self.owned[request] = self.pool.take(count)
            self.layers_left[request] = LAYERS
        elif command == "end":
            self.layers_left.pop(arguments[0], None)
            self.store.end(arguments[0])
        else:
            counts = dict(self.store.stats(), connections=self.server.stats()["connections"])
            self.pipe.send((len(self.pool.free), counts))

    def _compute(self, request: str) -> None:
        layer = LAYERS - self.layers_left[request]
        blocks = self.owned[request]
        self.pool.memory[layer, blocks] = content(request, layer, len(blocks))
        self.store.store(request, layer, self.pool.entries(layer, blocks))
        self.layers_left[request] -= 1
        if self.layers_left[request] == 0:
            del self.layers_left[request]


class DecodeWorker:
    """Loads requests, says how each load ended, and frees its blocks."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe, self.pool = pipe, Pool()
        self.client = load_runtime().TransferClient(fingerprint=FINGERPRINT, connect_timeout=60.0)
        self.loads: dict[str, tuple[Load, list[int]]] = {}
        pipe.send("")

    def run(self) -> None:
        while True:
            ready = wait([self.pipe, self.client.fileno()])
            if self.pipe in ready:
                self._obey(*self.pipe.recv())
            self.client.clear()
            for request, (load, blocks) in list(self.loads.items()):
                if load.done:
                    self._finish(request, load, blocks)

    def _obey(self, command: str, *arguments: Any) -> None:
        if command == "load":
            request, address, count = arguments
            blocks = self.pool.take(count)
            layers = [(layer, self.pool.entries(layer, blocks)) for layer in range(LAYERS)]
            self.loads[request] = self.client.load(address, request, layers, timeout=60.0), blocks
        elif command == "cancel":
            if arguments[0] in self.loads:
                self.loads[arguments[0]][0].cancel()
        else:
            self.pipe.send((len(self.pool.free), dict(self.client.stats())))

    def _finish(self, request: str, load: Load, blocks: list[int]) -> None:
        if load.code == "none":
            for layer in range(LAYERS):
                expected = content(request, layer, len(blocks))
                assert (self.pool.memory[layer, blocks] == expected).all()
        del self.loads[request]
        self.pool.give_back(blocks)
        self.pipe.send((request, load.code))


class Worker:
    """One of the two in its process."""

    def __init__(self, kind: type[PrefillWorker] | type[DecodeWorker]) -> None:
        self.kind = kind
        self.start()

    def start(self) -> None:
        self.pipe, far = fork.Pipe()
        self.process: ForkProcess = fork.Process(
            target=self._run, args=(self.kind, far), daemon=True
        )
        self.process.start()
        far.close()
        self.address = self.receive()

    @staticmethod
    def _run(kind: type[PrefillWorker] | type[DecodeWorker], pipe: Connection) -> None:
        kind(pipe).run()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()

    def send(self, *message: Any) -> None:
        self.pipe.send(message)

    def receive(self) -> Any:
        assert self.pipe.poll(TIMEOUT), "the worker says nothing"
        return self.pipe.recv()

    def counts(self) -> tuple[int, dict[str, Any]]:
        self.send("counts")
        free, counts = self.receive()
        return free, counts


@pytest.fixture
def prefill() -> Iterator[Worker]:
    worker = Worker(PrefillWorker)
    yield worker
    worker.kill()


@pytest.fixture
def decode() -> Iterator[Worker]:
    worker = Worker(DecodeWorker)
    yield worker
    worker.kill()


def begin(name: str, prefill: Worker, decode: Worker, choose: random.Random) -> list[str]:
    """Requests on their way, some of which change their mind."""
    requests = [f"{name}-{number}" for number in range(REQUESTS)]
    for request in requests:
        count = choose.randint(1, BLOCKS // REQUESTS)
        prefill.send("compute", request, count)
        decode.send("load", request, prefill.address, count)
    for request in choose.sample(requests, choose.randint(0, 2)):
        decode.send("cancel", request)
    return requests


def end(requests: list[str], prefill: Worker) -> None:
    for request in requests:
        prefill.send("end", request)


def results(requests: list[str], decode: Worker) -> set[str]:
    """How the loads ended; every one does."""
    ended = dict(decode.receive() for _ in requests)
    assert ended.keys() == set(requests)
    return set(ended.values())


def expect_idle(worker: Worker, idle: tuple[str, ...]) -> None:
    """All blocks are free, and nothing counts as under way, soon."""
    give_up = time.monotonic() + TIMEOUT
    while True:
        free, counts = worker.counts()
        if free == BLOCKS and not any(counts[name] for name in idle):
            return
        assert time.monotonic() < give_up, (free, counts)
        time.sleep(0.001)


def expect_prefill_idle(prefill: Worker) -> None:
    waiting = ("waiting_loads", "waiting_blocks", "sending", "releasing")
    expect_idle(prefill, ("requests", "blocks", "bytes", *waiting))


def expect_decode_idle(decode: Worker) -> None:
    expect_idle(decode, ("loads", "outstanding"))


def test_killed_at_any_moment(prefill: Worker, decode: Worker) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    choose = random.Random(seed)
    for kill in range(KILLS):
        requests = begin(f"kill-{kill}", prefill, decode, choose)
        time.sleep(choose.random() * 0.02)
        if choose.random() < 0.5:
            prefill.kill()
            assert results(requests, decode) <= AFTER_DEATH
            expect_decode_idle(decode)
            prefill.start()
        else:
            decode.kill()
            end(requests, prefill)
            expect_prefill_idle(prefill)
            decode.start()
    requests = begin("last", prefill, decode, choose)
    assert results(requests, decode) <= {"none", "cancelled"}
    end(requests, prefill)
    expect_prefill_idle(prefill)
    expect_decode_idle(decode)
