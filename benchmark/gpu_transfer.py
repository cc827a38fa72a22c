# SPDX-License-Identifier: Apache-2.0
"""How fast NIXL reads cached blocks of another GPU, against a plain copy between the two.

A process with the second GPU offers its memory, this one with the first reads it. "one read": of so
many chunks by the library alone, polled without a pause. "request": what a decode worker does, from
the order to store until all has come and was confirmed. The copy is the driver's, of all bytes in
one piece: what the wire gives. `UCX_TLS` and the like reach both sides.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

from benchmark.gpu_time import the_gpu
from benchmark.report import Report, parser
from benchmark.transfer_reads import ReadsFrom, memory_of
from rtp_llm.device import Device
from rtp_llm.disagg.transports.interface import Region
from rtp_llm.disagg.transports.nixl import NixlLibrary
from rtp_llm.worker.cache.transfer.layout import BlockPart, make_rows

MEBIBYTES = (4, 16, 64, 256, 1024)
BLOCK_KIB = (32, 256)
LAYERS = 16
COPIES = 20  # between two marks of a stream
GOAL = 200  # GB/s at 64 MiB
OTHER_GPU = {"LOCAL_RANK": "1"}
COLUMNS = ("MiB", "what", "GB/s", "median", "copy GB/s", "of the copy, %")


def main() -> None:
    """Measure all cases, print the table and write it as JSON if requested."""
    flags = parser(__doc__ or "")
    flags.add_argument("--mebibytes", type=int, action="append", help="of a request; may repeat")
    flags.add_argument("--rounds", type=int, default=20)
    options = flags.parse_args()
    device = the_gpu()
    if device.device_count() < 2:
        raise SystemExit("two GPUs are needed, one for each side")
    device.make_current()
    sizes = [size << 20 for size in options.mebibytes or MEBIBYTES]
    report = Report(f"NIXL between two GPUs, {device.description()}", COLUMNS)
    for size in sizes[:1] if options.quick else sizes:
        copied = _copy_rate(device, size)
        memory, region = memory_of(device, size)
        for name, (moved, seconds) in _timed(device, region, options.rounds).items():
            best, middle = moved / min(seconds), moved / statistics.median(seconds)
            report.add(
                **{
                    "MiB": size >> 20,
                    "what": name,
                    "GB/s": best / 1e9,
                    "median": middle / 1e9,
                    "copy GB/s": copied / 1e9,
                    "of the copy, %": 100 * best / copied,
                }
            )
        del memory
    report.notes.append(f"goal {GOAL} GB/s at 64 MiB; a request has {LAYERS} layers")
    report.print()
    report.write(options.json)


def _timed(device: Device, region: Region, rounds: int) -> dict[str, tuple[int, list[float]]]:
    """Bytes, and the seconds of each round."""
    found: dict[str, tuple[int, list[float]]] = {}

    def measure(name: str, moved: int, move: Callable[[], float]) -> None:
        move()  # makes the connection
        found[name] = moved, [move() for _ in range(rounds)]

    address, size, _ = region
    plain = _PlainReads(device, region)
    for chunks in (1, LAYERS, size // (256 << 10)):
        measure(f"one read, {chunks} chunks", size, functools.partial(plain.move, chunks))
    plain.close()
    for kib in BLOCK_KIB:
        for scattered in (False, True):
            layers = functools.partial(_layers, block_bytes=kib << 10, scattered=scattered)
            reader = ReadsFrom("nixl", region, layers, device, OTHER_GPU)
            moved = sum(int(rows[:, 5].sum()) for _, rows in layers(address, size))
            name = f"request, {'scattered ' if scattered else ''}blocks of {kib} KiB"
            measure(name, moved, reader.move)
            reader.close()
    return found


class _PlainReads:
    """One side shares memory, the other reads it, by the library alone."""

    def __init__(self, device: Device, region: Region) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, far = context.Pipe()
        work = (far, device.name, region[1])
        self._process = context.Process(target=_share, args=work, daemon=True)
        with patch.dict(os.environ, OTHER_GPU):
            self._process.start()
        address, theirs = self._pipe.recv()
        self._region, self._theirs = region, theirs
        self._reader = NixlLibrary(device).connect(address, [theirs], [region], "127.0.0.1")

    def move(self, chunks: int) -> float:
        """Return the seconds that all bytes take, read in this many chunks."""
        size = self._region[1] // chunks
        begins = np.arange(chunks) * size
        rows = np.column_stack(
            [self._theirs[0] + begins, self._region[0] + begins, np.full(chunks, size)]
        )
        began = time.perf_counter()
        reading = self._reader.read(rows)
        while not reading.poll():
            pass
        return time.perf_counter() - began

    def close(self) -> None:
        """Shut down both sides of the transfer."""
        self._reader.close()
        self._pipe.send(None)
        self._process.join()


def _share(pipe: Connection, kind: str, size: int) -> None:
    from rtp_llm.device import resolve_device

    device = resolve_device(kind)
    device.make_current()
    _memory, region = memory_of(device, size)
    shared = NixlLibrary(device).share([region], "127.0.0.1")
    pipe.send((shared.address, region))
    pipe.recv()
    shared.close()


def _layers(
    address: int, size: int, block_bytes: int, scattered: bool
) -> list[tuple[int, NDArray[np.int64]]]:
    """Blocks that fill the memory; scattered: every other one, so that no two are neighbours."""
    numbers = np.arange(0, size // block_bytes, 2 if scattered else 1)
    return [
        (
            layer,
            make_rows(0, BlockPart(part, part, part), address + part * block_bytes, block_bytes),
        )
        for layer, part in enumerate(np.array_split(numbers, LAYERS))
        if len(part)
    ]


def _copy_rate(device: Device, size: int) -> float:
    """Bytes in a second that copies from the second GPU get."""
    here, there = (torch.zeros(size, dtype=torch.uint8, device=f"cuda:{i}") for i in (0, 1))
    begin, end = device.new_event(timed=True), device.new_event(timed=True)
    seconds = []
    for _ in range(5):
        begin.record()
        for _ in range(COPIES):
            here.copy_(there)
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1000 / COPIES)
    return size / min(seconds)


if __name__ == "__main__":
    main()
