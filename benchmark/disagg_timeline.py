# SPDX-License-Identifier: Apache-2.0
"""When each layer is computed and when its blocks travel: the asynchronous writer, on stand-ins.

A layer takes LAYER_SECONDS and so does its transfer, so that what overlaps can be seen. The writer,
its threads and the operator that hands layers over are what a prefill worker uses.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmark.report import Report
from rtp_llm.attention import CacheGroups, FullAttentionSpec
from rtp_llm.device.cpu import CpuDevice
from rtp_llm.worker.cache.kv_cache import KVCache
from rtp_llm.worker.cache.transfer.layout import CacheLayout, PromptBlocks
from rtp_llm.worker.cache.transfer.write_cycles import WriteCycles
from rtp_llm.worker.cache.transfer.write_op import CacheStoreInputs, WriteCacheStoreOp
from rtp_llm.worker.cache.transfer.writer_settings import WriterSettings

LAYER_SECONDS = 0.005
_BLOCK_SIZE, _BLOCKS = 16, 4


@dataclass
class Layer:
    """Timestamps of a layer's events, in milliseconds since the step began."""

    forward: tuple[float, float] = (0.0, 0.0)
    handed_over: float = 0.0
    transfer: tuple[float, float] = (0.0, 0.0)


def run(layers: int, threads: int) -> list[Layer]:
    """One step; returns when everything has travelled."""
    seen = [Layer() for _ in range(layers)]
    groups = CacheGroups.of([FullAttentionSpec(1, 8, torch.float32)] * layers)
    cache = KVCache(groups, (_BLOCKS,), _BLOCK_SIZE, torch.device("cpu"))
    writing = WriterSettings(threads=threads)
    device, began = CpuDevice(), 0.0
    cycles = WriteCycles(writing, device.make_current, lambda cycle: None)

    def now() -> float:
        return 1e3 * (time.perf_counter() - began)

    class Wire:
        """A transport whose transfers take LAYER_SECONDS each."""

        def send(self, layer: int, prompts: Sequence[PromptBlocks]) -> None:
            start = now()
            time.sleep(LAYER_SECONDS)
            seen[layer].transfer = (start, now())

    cycle, layout = cycles.begin([1]), CacheLayout(cache)
    op = WriteCacheStoreOp(_inputs(), layout, Wire(), cycle.submit, device.new_event)
    began = time.perf_counter()
    for index, layer in enumerate(seen):
        start = now()
        time.sleep(LAYER_SECONDS)
        layer.forward = (start, now())
        op(index)
        layer.handed_over = now()
    cycles.finish()
    cycles.close()
    return seen


def _inputs() -> CacheStoreInputs:
    def row(*numbers: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.tensor(numbers, dtype=dtype)

    return CacheStoreInputs(
        input_lengths_host=row(_BLOCKS * _BLOCK_SIZE),
        prefix_lengths_host=row(0),
        host_kv_cache_offset=(torch.arange(_BLOCKS, dtype=torch.int32)[None],),
        request_id=row(1, dtype=torch.int64),
        request_pd_separation=row(1, dtype=torch.bool),
        cache_keys=torch.arange(_BLOCKS)[None],
    )


def timeline(arguments: Any) -> Report:
    """Report each layer of one step, and the whole step's time for several thread counts."""
    if len(arguments.writer_threads or ()) > 1:
        return _sweep(arguments)
    (threads,) = arguments.writer_threads or (4,)
    columns = ("layer", "forward ms", "to", "transfer ms", "until", "handed over in us")
    report = Report(f"One step of {arguments.layers} layers, {threads} writer threads", columns)
    seen = run(arguments.layers, threads)
    for index, layer in enumerate(seen):
        taken = 1e3 * (layer.handed_over - layer.forward[1])
        times = dict(zip(columns[1:5], (*layer.forward, *layer.transfer), strict=True))
        report.add(**{"layer": index, **times, "handed over in us": taken})
    pairs = list(itertools.pairwise(seen))
    early = sum(each.transfer[0] < after.forward[1] for each, after in pairs)
    longest = max(1e3 * (layer.handed_over - layer.forward[1]) for layer in seen)
    report.notes.append(
        f"{early} of {len(pairs)} transfers began before the next layer's forward ended; the "
        f"forward thread spent {longest:.0f} us in its longest hand-over. Injected: "
        f"{1e3 * LAYER_SECONDS:g} ms for a layer, as much for its transfer"
    )
    return report


def _sweep(arguments: Any) -> Report:
    columns = ("writer threads", "layers ms", "all stored ms", "longest hand-over us")
    report = Report(f"Steps of {arguments.layers} layers", columns)
    rounds = arguments.rounds or (3 if arguments.quick else 9)
    for threads in arguments.writer_threads:
        steps = [run(arguments.layers, threads) for _ in range(rounds)]
        steps.sort(key=lambda seen: max(layer.transfer[1] for layer in seen))
        middle = steps[rounds // 2]
        report.add(
            **{
                "writer threads": threads,
                "layers ms": middle[-1].forward[1],
                "all stored ms": max(layer.transfer[1] for layer in middle),
                "longest hand-over us": 1e3
                * max(layer.handed_over - layer.forward[1] for layer in middle),
            }
        )
    report.notes.append(f"medians of {rounds}; {1e3 * LAYER_SECONDS:g} ms injected for each")
    return report
