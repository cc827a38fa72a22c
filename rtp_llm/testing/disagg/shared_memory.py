# SPDX-License-Identifier: Apache-2.0
"""A process that lets others read memory of its device, and is asked by a pipe."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtp_llm.device import Device
from rtp_llm.disagg.transports.endpoints import LoadHandle
from rtp_llm.disagg.transports.interface import Region
from rtp_llm.disagg.transports.registry import offer_blocks, take_blocks
from rtp_llm.worker.cache.transfer.layout import BlockPart, make_rows

TIMEOUT = 60.0


def region_of(memory: Tensor) -> Region:
    """Of device memory."""
    return memory.data_ptr(), memory.nbytes, memory.device.index


def layers_of(
    memory: Tensor, layers: int, block_bytes: int, *, step: int = 1
) -> list[tuple[int, NDArray[np.int64]]]:
    """All blocks of a memory in layers; ``step`` above 1: only every so many, no two neighbours."""
    made = []
    for layer, blocks in enumerate(
        np.array_split(np.arange(memory.nbytes // block_bytes)[::step], layers)
    ):
        part = BlockPart(blocks, blocks, blocks)
        addresses = memory.data_ptr() + blocks * block_bytes
        made.append((layer, make_rows(0, part, addresses, block_bytes)))
    return made


def random_bytes(size: int, device: Device) -> Tensor:
    """The same on every device of a kind."""
    generator = torch.Generator(device.torch_device).manual_seed(size)
    made = torch.empty(size, dtype=torch.uint8, device=device.torch_device)
    return made.random_(0, 256, generator=generator)


def _share(pipe: Connection, kind: str, size: int, shape: dict[str, int]) -> None:
    from rtp_llm.device import resolve_device

    device = resolve_device(kind)
    device.make_current()
    memory = random_bytes(size, device)
    device.synchronize()
    stores, offers = offer_blocks(
        "nixl", "127.0.0.1", "", [region_of(memory)], TIMEOUT, device=device
    )
    pipe.send(offers)
    while (name := pipe.recv()) is not None:
        stores.end(str(name - 1))
        stores.begin(str(name), "nixl", pipe.send)
        for layer, rows in layers_of(memory, **shape):
            stores.store(str(name), layer, rows)
    stores.close()


class SharedMemory:
    """The process, and loads from it into ``here``; ``shape``: of layers_of."""

    def __init__(
        self, device: Device, here: Tensor, shape: dict[str, int], environ: dict[str, str]
    ) -> None:
        """``environ`` says the process which device is its own."""
        import os
        from unittest.mock import patch

        context = multiprocessing.get_context("spawn")
        self.pipe, far = context.Pipe()
        work = (far, device.name, here.nbytes, shape)
        self.process = context.Process(target=_share, args=work, daemon=True)
        with patch.dict(os.environ, environ):
            self.process.start()
        far.close()
        self.transports = take_blocks("nixl", "", [region_of(here)], device=device)
        self._rows = layers_of(here, **shape)
        self._name = 0
        self.meet()
        threading.Thread(target=self._hear, daemon=True).start()

    def meet(self) -> None:
        """Take what it offers."""
        offers: Sequence[Any] = self.pipe.recv()
        _, (self._address,) = self.transports.meet("there", "127.0.0.1", offers)

    def load(self, free: Any = None) -> LoadHandle:
        """Begin to read all of it."""
        self._name += 1
        load = self.transports.load(
            self._address, str(self._name), self._rows, timeout=TIMEOUT, free=free
        )
        self.pipe.send(self._name)
        return load

    def close(self) -> None:
        """End both sides."""
        self.transports.close()
        if self.process.is_alive():
            self.pipe.send(None)
        self.process.join()

    def pause(self) -> None:
        """As a connection: what is told here is never too much."""

    def resume(self) -> None:
        """As a connection."""

    def _hear(self) -> None:
        while True:
            try:
                self.transports.hear("there", self.pipe.recv(), self)
            except (EOFError, OSError):
                return
