# SPDX-License-Identifier: Apache-2.0
"""The far side of a transport by reads, in a process of its own, and loads from it."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rtp_llm.device import Device, resolve_device
from rtp_llm.disagg.transports.interface import HOST, Region
from rtp_llm.disagg.transports.registry import offer_blocks, take_blocks

Layers = Sequence[tuple[int, NDArray[np.int64]]]
_TIMEOUT = 600.0


def memory_of(device: Device | None, size: int) -> tuple[Any, Region]:
    """Memory of so many bytes, of the host for None: what keeps it, and where it is."""
    if device is None:
        memory = np.ones(size, np.uint8)
        return memory, (memory.ctypes.data, size, HOST)
    import torch

    tensor = torch.ones(size, dtype=torch.uint8, device=device.torch_device)
    device.synchronize()
    return tensor, (tensor.data_ptr(), size, tensor.device.index)


class ReadsFrom:
    """A prefill process that publishes where its blocks are, and a decode side in this process."""

    def __init__(
        self,
        transport: str,
        target: Region,
        layers: Callable[[int, int], Layers],
        device: Device | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """``layers`` makes the blocks of a memory at an address and as large as ``target``, on
        either side. ``device``: where that memory is, None: on the host; ``environ`` selects
        the other process's device."""
        context = multiprocessing.get_context("spawn")
        self._pipe, far = context.Pipe()
        address, size, _ = target
        work = (far, transport, device.name if device else "", size, layers)
        self._process = context.Process(target=_offer, args=work, daemon=True)
        with _environment(environ or {}):
            self._process.start()
        offers = self._pipe.recv()
        self._transports = take_blocks(transport, "", [target], device=device)
        _, (self._address,) = self._transports.meet("far", "127.0.0.1", offers)
        self._layers = layers(address, size)
        self._names = itertools.count(1)
        threading.Thread(target=self._receive, daemon=True).start()

    def move(self) -> float:
        """Seconds that all blocks take, from the order to store them on."""
        name = next(self._names)
        began = time.perf_counter()
        load = self._transports.load(self._address, str(name), self._layers, timeout=_TIMEOUT)
        self._pipe.send(name)
        while not load.done:
            time.sleep(0.0002)
        seconds = time.perf_counter() - began
        if load.code != "none":
            raise SystemExit(load.message)
        return seconds

    def close(self) -> None:
        """Shut down both sides of the transfer."""
        self._transports.close()
        self._pipe.send(None)
        self._process.join()

    def _receive(self) -> None:
        while True:
            try:
                stored = self._pipe.recv()
            except EOFError:
                return
            self._transports.hear("far", stored, self)

    def pause(self) -> None:
        """Implements the connection interface: there is never too much unread data."""

    def resume(self) -> None:
        """Implements the connection interface: reading is never paused."""


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Inside, processes are started with these."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _offer(
    pipe: Connection, transport: str, kind: str, size: int, layers: Callable[[int, int], Layers]
) -> None:
    device = resolve_device(kind) if kind else None
    if device is not None:
        device.make_current()
    _memory, region = memory_of(device, size)
    stores, offers = offer_blocks(transport, "127.0.0.1", "", [region], _TIMEOUT, device=device)
    pipe.send(offers)
    while (name := pipe.recv()) is not None:
        stores.end(str(name - 1))
        stores.begin(str(name), transport, pipe.send)
        for layer, blocks in layers(*region[:2]):
            stores.store(str(name), layer, blocks)
    stores.close()
