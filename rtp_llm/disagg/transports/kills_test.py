# SPDX-License-Identifier: Apache-2.0
"""A side is killed while blocks are read: the other one goes on, and nothing is written late.

With real libraries only; one that is not installed is skipped.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
import time
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from rtp_llm.disagg.transports.interface import HOST, Region
from rtp_llm.disagg.transports.registry import offer_blocks, take_blocks
from rtp_llm.disagg.transports.store import TransportStore
from rtp_llm.testing.disagg.sides import transport_called, wait_for
from rtp_llm.worker.cache.transfer.layout import BlockPart, make_rows

KILLS = int(os.environ.get("RTP_LLM_READ_KILLS", "4"))
BLOCK_BYTES, BLOCKS = 64 << 10, 512
LAYERS = 4
CONTEXT = multiprocessing.get_context("spawn")


@pytest.fixture(params=["nixl", "mooncake"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    with transport_called(request.param, monkeypatch) as name:
        yield name


def layers_of(memory: np.ndarray) -> list[tuple[int, np.ndarray]]:
    made = []
    for layer, blocks in enumerate(np.array_split(np.arange(BLOCKS), LAYERS)):
        addresses = memory.ctypes.data + blocks * BLOCK_BYTES
        made.append(
            (layer, make_rows(0, BlockPart(blocks, blocks, blocks), addresses, BLOCK_BYTES))
        )
    return made


def new_memory(value: int) -> tuple[np.ndarray, list[Region]]:
    memory = np.full(BLOCKS * BLOCK_BYTES, value, np.uint8)
    return memory, [(memory.ctypes.data, memory.nbytes, HOST)]


def store_all(
    stores: TransportStore, name: int, transport: str, memory: np.ndarray, notify: Any
) -> None:
    stores.begin(str(name), transport, notify)
    for layer, rows in layers_of(memory):
        stores.store(str(name), layer, rows)


def prefill(pipe: Connection, transport: str) -> None:
    memory, regions = new_memory(7)
    stores, offers = offer_blocks(transport, "127.0.0.1", "", regions, 60)
    pipe.send(offers)
    store_all(stores, pipe.recv(), transport, memory, pipe.send)
    time.sleep(600)


def decode(pipe: Connection, transport: str) -> None:
    memory, regions = new_memory(0)
    transports = take_blocks(transport, "", regions)
    _, (address,) = transports.meet("p", "127.0.0.1", pipe.recv())
    load = transports.load(address, "1", layers_of(memory), timeout=60)
    pipe.send("go")
    while not load.done:
        if pipe.poll(0.001):
            transports.hear("p", pipe.recv(), Mock())
    pipe.send(load.code)
    time.sleep(600)


def test_a_killed_prefill_worker_writes_nothing_late(transport: str) -> None:
    chance = random.Random(3)
    memory, regions = new_memory(0)
    transports = take_blocks(transport, "", regions)
    for name in range(1, KILLS + 1):
        near, far = CONTEXT.Pipe()
        process = CONTEXT.Process(target=prefill, args=(far, transport), daemon=True)
        process.start()
        far.close()
        _, (address,) = transports.meet("p", "127.0.0.1", near.recv())
        load = transports.load(address, str(name), layers_of(memory), timeout=60)
        near.send(name)

        def hear(near: Any = near) -> None:
            while True:
                try:
                    transports.hear("p", near.recv(), Mock())
                except (EOFError, OSError):
                    return

        threading.Thread(target=hear, daemon=True).start()
        time.sleep(chance.random() * 0.1)
        process.kill()
        process.join()
        load.cancel()  # as the decode engine does when the connection ends
        wait_for(lambda load=load: load.done)  # type: ignore[misc]
        whole = load.code == "none"
        assert not whole or (memory == 7).all()
        memory[:] = 0
        time.sleep(0.05)
        assert not memory.any()
    client: Any = transports._clients[transport]
    assert len(client._counters._free) == client._counters._memory.size and not client._loads
    transports.close()


def test_a_killed_decode_worker_leaves_the_other_side_whole(transport: str) -> None:
    chance = random.Random(4)
    memory, regions = new_memory(7)
    stores, offers = offer_blocks(transport, "127.0.0.1", "", regions, 60)
    for kill in range(KILLS + 1):
        near, far = CONTEXT.Pipe()
        process = CONTEXT.Process(target=decode, args=(far, transport), daemon=True)
        process.start()
        near.send(offers)
        assert near.recv() == "go"
        store_all(stores, 1, transport, memory, near.send)
        if kill == KILLS:  # the last one is let live: everything still works
            assert near.recv() == "none"
        else:
            time.sleep(chance.random() * 0.1)
        process.kill()
        process.join()
        stores.end("1")
        assert not stores.busy("1")
    stores.close()
