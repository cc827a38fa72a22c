# SPDX-License-Identifier: Apache-2.0
"""How fast cached blocks move between two processes over loopback, against plain sockets.

A prefill process stores all layers of a request; this one loads them, checks nothing and begins
again. In turns with it, plain sockets move the same bytes to the same memory in one piece each:
sendall on one side, recv_into on the other, a thread for each connection. That is what loopback
gives on this machine. With --transport, libraries read the same blocks from a third process.
"""

from __future__ import annotations

import functools
import multiprocessing
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmark import report
from benchmark.rounds import Figure, interleave
from benchmark.transfer_reads import ReadsFrom
from rtp_llm.disagg.transports.interface import HOST
from rtp_llm.native import load_runtime

if TYPE_CHECKING:
    from rtp_llm._runtime import TransferClient

_BLOCK_BYTES = 32 << 10  # keys of 16 tokens, 8 heads of 128 bfloat16
_LAYERS = 16
_RECEIVE_BYTES = 256 << 10  # of one recv: what fits into a cache
_CONNECTIONS = (1, 2, 4)
_TIMEOUT = 600.0
_FINGERPRINT = "benchmark"


def main() -> None:
    """Measure all cases, print the table and write it as JSON if requested."""
    options = _options()
    runtime = load_runtime()
    far = _Far(options.mebibytes << 20, options.slices)
    target = np.zeros(options.mebibytes << 20, dtype=np.uint8)
    region = (target.ctypes.data, target.nbytes, HOST)
    layers_of = functools.partial(_layers, slices=options.slices)
    readers = {name: ReadsFrom(name, region, layers_of) for name in options.transport}
    table = report.Report(
        f"Transfer of {options.mebibytes} MiB in {_LAYERS} layers over loopback",
        ["connections", "way", "GB/s", "median", "of plain"],
    )
    for count in _CONNECTIONS:
        with _plain(far.plain_port, count, target) as plain:
            clients = [_client(runtime, count, checksums) for checksums in (False, True)]
            layers = layers_of(*region[:2])
            ways: dict[str, Callable[[], float]] = {"plain sockets": plain.move}
            for client, name in zip(clients, ("blocks", "blocks, checksums"), strict=True):
                ways[name] = _loader(client, far.address, layers)
            ways |= {name: reader.move for name, reader in readers.items()}
            figures = interleave(ways, options.rounds)
            for client in clients:
                client.close()
        _add_rows(table, count, target.nbytes, figures)
    for each in (*readers.values(), far):
        each.close()
    table.notes.append(f"blocks of {_BLOCK_BYTES >> 10} KiB, each in {options.slices} rows")
    table.print()
    table.write(options.json)


def _add_rows(
    table: report.Report, connections: int, num_bytes: int, figures: Mapping[str, Figure]
) -> None:
    """One row for each way."""
    plain_seconds, _ = figures["plain sockets"].spread
    for name, figure in figures.items():
        seconds, _ = figure.spread
        table.add(
            **{
                "connections": connections,
                "way": name,
                "GB/s": num_bytes / seconds / 1e9,
                "median": num_bytes / figure.median / 1e9,
                "of plain": plain_seconds / seconds,
            }
        )


def _options() -> Any:
    parser = report.parser(__doc__ or "")
    parser.add_argument("--mebibytes", type=int, default=256)
    parser.add_argument("--slices", type=int, default=1, help="rows of a block, with gaps if > 1")
    parser.add_argument(
        "--transport", nargs="*", default=[], choices=("nixl", "mooncake"), help="installed ones"
    )
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    if options.transport and options.slices > 1:
        parser.error("libraries read whole blocks: leave --slices out")
    if options.quick:
        options.mebibytes, options.rounds = 8, 2
    return options


def _layers(address: int, size: int, slices: int) -> list[tuple[int, NDArray[np.int64]]]:
    """Return blocks that fill the memory; with slices, every row lacks its last 64 bytes."""
    per_layer = size // _LAYERS // _BLOCK_BYTES
    row = _BLOCK_BYTES // slices
    layers = []
    for layer in range(_LAYERS):
        blocks = np.zeros((per_layer, 7), dtype=np.int64)
        place = np.arange(per_layer)
        blocks[:, 1] = place
        blocks[:, 3] = address + (layer * per_layer + place) * _BLOCK_BYTES
        blocks[:, 4:] = slices, row - (64 if slices > 1 else 0), row
        layers.append((layer, blocks))
    return layers


class _Far:
    """The prefill process: a store with everything in it, and a listener for plain sockets."""

    def __init__(self, size: int, slices: int) -> None:
        # By fork, before this process has threads.
        context = multiprocessing.get_context("fork")
        self.pipe, far = context.Pipe()
        self.process = context.Process(target=_prefill, args=(far, size, slices), daemon=True)
        self.process.start()
        self.address, self.plain_port = self.pipe.recv()

    def close(self) -> None:
        self.pipe.send(None)
        self.process.join()


def _prefill(pipe: Connection, size: int, slices: int) -> None:
    runtime = load_runtime()
    memory = np.ones(size, dtype=np.uint8)
    store = runtime.CacheStore(expiry=24 * 3600.0)
    server = runtime.TransferServer(store, fingerprint=_FINGERPRINT, io_threads=max(_CONNECTIONS))
    for layer, blocks in _layers(memory.ctypes.data, size, slices):
        store.store("request", layer, blocks)
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_serve_plain, args=(listener, memory), daemon=True).start()
    pipe.send((server.address, listener.getsockname()[1]))
    pipe.recv()
    server.close()


def _serve_plain(listener: socket.socket, memory: NDArray[np.uint8]) -> None:
    while True:
        near, _ = listener.accept()
        threading.Thread(target=_send_plain, args=(near, memory), daemon=True).start()


def _send_plain(near: socket.socket, memory: NDArray[np.uint8]) -> None:
    """Send the range that each line names, until there is none."""
    for line in near.makefile("r"):
        begin, end = map(int, line.split())
        near.sendall(memory.data[begin:end])


class _plain:
    """Plain sockets, a thread for each while bytes move."""

    def __init__(self, port: int, count: int, target: NDArray[np.uint8]) -> None:
        self.sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
        self.target = target

    def __enter__(self) -> _plain:
        return self

    def __exit__(self, *_: object) -> None:
        for near in self.sockets:
            near.close()

    def move(self) -> float:
        """Seconds that all bytes take."""
        cuts = [self.target.nbytes * i // len(self.sockets) for i in range(len(self.sockets) + 1)]
        threads = [
            threading.Thread(target=self._receive, args=(near, begin, end))
            for near, begin, end in zip(self.sockets, cuts, cuts[1:], strict=False)
        ]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - began

    def _receive(self, near: socket.socket, begin: int, end: int) -> None:
        near.sendall(f"{begin} {end}\n".encode())
        while begin < end:
            begin += near.recv_into(self.target.data[begin : min(end, begin + _RECEIVE_BYTES)])


def _client(runtime: Any, connections: int, checksums: bool) -> TransferClient:
    client: TransferClient = runtime.TransferClient(
        fingerprint=_FINGERPRINT,
        connections=connections,
        io_threads=connections,
        checksums=checksums,
    )
    return client


def _loader(
    client: TransferClient, address: str, layers: Sequence[tuple[int, NDArray[np.int64]]]
) -> Callable[[], float]:
    def move() -> float:
        began = time.perf_counter()
        load = client.load(address, "request", layers, timeout=_TIMEOUT)
        if not load.wait(_TIMEOUT) or load.code != "none":
            raise SystemExit(load.message)
        return time.perf_counter() - began

    return move


if __name__ == "__main__":
    main()
