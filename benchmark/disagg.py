# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode on different workers: the store's cost per prompt, and what clients see.

First token ("first"), time between two tokens ("gap") and a long prompt's first token ("long").
`--part step`: milliseconds of each of four prompts with blocks offered to the store and without, in
one process, interleaved: until the last step has ended, and until the last block is in the store
("stored"), which on a GPU is bound by plain copies to the host. `--part mixed`: short answers
stream while long prompts keep coming, at one combined server and at a prefill and a decode server;
all on this machine, so with few cores they share them. `--part transfer`: bytes per second of
blocks over loopback, against a plain socket. `--part timeline`: when each layer is computed and its
blocks travel, with layers and transfers of 5 ms; for several `--writer-threads`, what each took in
all.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import threading
import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmark.disagg_timeline import timeline
from benchmark.gpu_engine import settings_for
from benchmark.random_model import SHAPES
from benchmark.report import Report, parser
from benchmark.rounds import interleave
from benchmark.server_process import ServerProcess, Streamed, speaking_folder, stream
from rtp_llm.device import Device
from rtp_llm.disagg.build import build_worker
from rtp_llm.engine.messages import INDEX_BITS, AddRequest
from rtp_llm.engine.start.build import build_engine
from rtp_llm.native import load_runtime
from rtp_llm.request.sampling_params import SamplingParams
from rtp_llm.worker.cache.transfer.layout import BlockPart, make_rows

MIB = 2**20
COPY_BYTES = 256 * MIB
PROMPTS = 4  # one after the other: copies of one go on while the next is computed


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--part", choices=("step", "mixed", "transfer", "timeline"), default="step")
    flags.add_argument("--shape", default="small")
    flags.add_argument("--tokens", type=int, default=1024, help="of a long prompt")
    flags.add_argument("--layers", type=int, default=8, help="of the timeline")
    flags.add_argument("--rounds", type=int)
    flags.add_argument("--writer-threads", type=int, action="append")
    flags.add_argument("--cache-mib", type=int, default=512)
    flags.add_argument("--seconds", type=float, default=15.0)
    arguments = flags.parse_args()
    parts = {"step": steps, "mixed": mixed, "transfer": transfer, "timeline": timeline}
    report = parts[arguments.part](arguments)
    report.print()
    report.write(arguments.json)


# -- the store's cost in the forward pass ------------------------------------------------------


class StoringEngine:
    """A prefill worker's engine whose prompts go to the store or not."""

    def __init__(self, arguments: Any, threads: int) -> None:
        settings = settings_for(
            arguments.shape,
            role="prefill",
            prefill_address="127.0.0.1:0",
            num_threads=arguments.threads,
            kv_cache_mem_mb=arguments.cache_mib,
            cache_store_threads=threads,
            enable_graphs=False,
        )
        self.base = build_engine(settings)
        self.worker: Any = build_worker(settings, self.base).engine.connector
        self._size = SHAPES[arguments.shape]["vocab_size"]
        self._tokens = arguments.tokens
        self._last = 0
        self.until_stored: list[float] = []

    def prompts(self, stored: bool) -> float:
        """Seconds of each of several prompts that came at once; `until_stored` gets those until all
        their blocks are."""
        engine, worker = self.base.engine, self.worker
        params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
        names = range(self._last + 1, self._last + PROMPTS + 1)
        self._last = names[-1]
        for name in names:
            ids = np.random.default_rng(name).integers(0, self._size, self._tokens)
            engine.add(AddRequest(request_id=name, prompt_token_ids=ids.tolist(), params=params))
            if stored:
                worker._sender.store.begin(str(name), "tcp", lambda _: None)
                worker._sender.writer.add(name << INDEX_BITS, name, ids.astype(np.int32), "")
        began = time.perf_counter()
        while engine.has_work:
            engine.step()
        seconds = time.perf_counter() - began
        worker._sender.writer.finish()
        if stored:
            self.until_stored.append((time.perf_counter() - began) / PROMPTS)
        for name in names:
            worker._sender.writer.remove(name << INDEX_BITS)
            worker._sender.store.end(str(name))
            engine.kv_blocks.unpin(name << INDEX_BITS)
        return seconds / PROMPTS


def steps(arguments: Any) -> Report:
    """Time prompts with and without the store, for each number of writer threads."""
    columns = (
        "writer threads",
        "off ms",
        "spread",
        "on ms",
        "spread on",
        "overhead %",
        "stored ms",
    )
    report = Report(f"Prompts of {arguments.tokens} tokens, shape {arguments.shape!r}", columns)
    rounds = arguments.rounds or (5 if arguments.quick else 9)
    for threads in arguments.writer_threads or [4]:
        engine = StoringEngine(arguments, threads)
        engine.prompts(True)
        figures = interleave(
            {"off": lambda: engine.prompts(False), "on": lambda: engine.prompts(True)},  # noqa: B023
            rounds,
        )
        off, on = figures["off"], figures["on"]
        report.add(
            **{
                "writer threads": threads,
                "off ms": 1e3 * off.median,
                "spread": tuple(1e3 * value for value in off.spread),
                "on ms": 1e3 * on.median,
                "spread on": tuple(1e3 * value for value in on.spread),
                "overhead %": 100 * (on.median / off.median - 1),
                "stored ms": 1e3 * statistics.median(engine.until_stored[-rounds:]),
            }
        )
        engine.worker.close()
    device = engine.base.worker.runner.device
    report.notes.append(f"{device.description()}; {rounds} interleaved rounds, medians")
    if not device.shares_memory:
        report.notes.append(f"plain copies to the host: {rate_to_host(device) / 1e9:.1f} GB/s")
    return report


def rate_to_host(device: Device) -> float:
    """Return bytes per second of the fastest of a few copies into pinned memory."""
    source = torch.zeros(COPY_BYTES, dtype=torch.uint8, device=device.torch_device)
    host = device.pinned_empty((COPY_BYTES,), torch.uint8)
    begin, end = device.new_event(timed=True), device.new_event(timed=True)
    rates = []
    for _ in range(5):
        begin.record()
        host.copy_(source, non_blocking=True)
        end.record()
        end.synchronize()
        rates.append(1e3 * COPY_BYTES / begin.elapsed_time(end))
    return max(rates)


# -- what clients see --------------------------------------------------------------------------

SHORT_PROMPT, ANSWER = 32, 96
STREAMS = 2
LONG_EVERY_SECONDS = 1.5


def mixed(arguments: Any) -> Report:
    """Measure streams of short answers while long prompts run, on one server and on two."""
    columns = (
        "servers",
        "first ms p50",
        "p95",
        "gap ms p50",
        "gap p95",
        "gap p99",
        "long ms",
    )
    report = Report(
        f"{STREAMS} streams during prompts of {arguments.tokens} tokens, shape {arguments.shape!r}",
        columns,
    )
    folder = speaking_folder(arguments.shape)
    common = ("--num-threads", "1", "--kv-cache-mem-mb", str(arguments.cache_mib))
    common += ("--max-seq-len", "4096")
    with ServerProcess(folder, *common) as server:
        report.add(servers="one, 1 thread", **_listen(server.url, arguments))
    both = ("--num-threads", "2", *common[2:])
    with ServerProcess(folder, *both) as server:
        report.add(servers="one, 2 threads", **_listen(server.url, arguments))
    free = ("--role", "prefill", "--prefill-address", "127.0.0.1:0")
    with ServerProcess(folder, *common, *free) as prefill:
        address = next(line.split()[-1] for line in prefill.output if "--prefill-workers" in line)
        flags = ("--role", "decode", "--prefill-workers", address)
        with ServerProcess(folder, *common, *flags) as decode:
            report.add(servers="prefill + decode, 1 thread each", **_listen(decode.url, arguments))
    report.notes.append(
        f"a long prompt every {LONG_EVERY_SECONDS} s for {arguments.seconds:g} s; answers of "
        f"{ANSWER} tokens to prompts of {SHORT_PROMPT}, one after the other in each stream. "
        "Clients share the cores."
    )
    return report


def _listen(url: str, arguments: Any) -> dict[str, float]:
    shorts, longs = asyncio.run(_load(url, arguments))
    first = [1e3 * each.first for each in shorts]
    gaps = [1e3 * gap for each in shorts for gap in np.diff(each.times).tolist()]
    return {
        "first ms p50": statistics.median(first),
        "p95": float(np.percentile(first, 95)),
        "gap ms p50": statistics.median(gaps),
        "gap p95": float(np.percentile(gaps, 95)),
        "gap p99": float(np.percentile(gaps, 99)),
        "long ms": statistics.median(1e3 * each.first for each in longs),
    }


async def _load(url: str, arguments: Any) -> tuple[list[Streamed], list[Streamed]]:
    size = SHAPES[arguments.shape]["vocab_size"]
    random = np.random.default_rng(3)
    shorts: list[Streamed] = []
    longs: list[Streamed] = []
    end = time.perf_counter() + arguments.seconds

    async def short() -> None:
        while time.perf_counter() < end:
            prompt = random.integers(0, size, SHORT_PROMPT).tolist()
            shorts.append(await stream(url, prompt, ANSWER))

    async def long(prompt: list[int]) -> None:
        longs.append(await stream(url, prompt, 4))

    await stream(url, random.integers(0, size, SHORT_PROMPT).tolist(), 8)
    tasks = [asyncio.create_task(short()) for _ in range(STREAMS)]
    while time.perf_counter() < end - LONG_EVERY_SECONDS:
        prompt = random.integers(0, size, arguments.tokens).tolist()
        tasks.append(asyncio.create_task(long(prompt)))
        await asyncio.sleep(LONG_EVERY_SECONDS)
    await asyncio.gather(*tasks)
    return shorts, longs


# -- the wire ----------------------------------------------------------------------------------

LAYERS, BLOCKS, BLOCK_BYTES = 8, 512, 16384


def transfer(arguments: Any) -> Report:
    """Move blocks through store and transport, with checksums, against bytes through a socket."""
    runtime = load_runtime()
    rounds = arguments.rounds or 7
    source = torch.randint(0, 255, (LAYERS, BLOCKS, BLOCK_BYTES), dtype=torch.uint8)
    target = torch.zeros_like(source)
    total = source.nbytes
    store = runtime.CacheStore()
    server = runtime.TransferServer(store, fingerprint="benchmark")
    client = runtime.TransferClient(fingerprint="benchmark")
    numbers = iter(range(1, 10**9))

    def load() -> float:
        name = str(next(numbers))
        for layer in range(LAYERS):
            store.store(name, layer, _rows(source[layer]))
        wanted = [(layer, _rows(target[layer])) for layer in range(LAYERS)]
        began = time.perf_counter()
        under_way = client.load(server.address, name, wanted, timeout=30.0)
        if not under_way.wait(30.0) or under_way.code != "none":
            raise SystemExit(under_way.message)
        seconds = time.perf_counter() - began
        store.end(name)
        return seconds

    load()
    if not torch.equal(source, target):
        raise SystemExit("other bytes arrived")
    figures = interleave({"blocks": load, "socket": lambda: _plain(total)}, rounds)
    report = Report(f"{total / MIB:.0f} MiB over loopback", ("way", "GB/s", "spread"))
    for name, figure in figures.items():
        spread = tuple(total / value / 1e9 for value in reversed(figure.spread))
        report.add(**{"way": name, "GB/s": total / figure.median / 1e9, "spread": spread})
    report.notes.append(f"blocks of {BLOCK_BYTES} bytes, {LAYERS} layers of {BLOCKS}, checksummed")
    client.close()
    server.close()
    return report


def _rows(layer: torch.Tensor) -> NDArray[np.int64]:
    places = np.arange(len(layer))
    part = BlockPart(places, places, places)
    return make_rows(0, part, layer.data_ptr() + places * BLOCK_BYTES, BLOCK_BYTES)


def _plain(total: int) -> float:
    """Return the seconds to send this many bytes over one connection within this process."""
    listener = socket.create_server(("127.0.0.1", 0))
    sender = socket.create_connection(listener.getsockname())
    receiver, _ = listener.accept()
    chunk = memoryview(bytes(MIB))
    into = memoryview(bytearray(MIB))

    def send() -> None:
        for _ in range(total // MIB):
            sender.sendall(chunk)

    work = threading.Thread(target=send)
    began = time.perf_counter()
    work.start()
    left = total
    while left > 0:
        left -= receiver.recv_into(into)
    seconds = time.perf_counter() - began
    work.join()
    for each in (sender, receiver, listener):
        each.close()
    return seconds


if __name__ == "__main__":
    main()
