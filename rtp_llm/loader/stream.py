# SPDX-License-Identifier: Apache-2.0
"""Moves a checkpoint's tensors into a model, a few rows at a time.

If the dtype matches, the file is read directly into the parameter; otherwise rows pass through a
small buffer, page-locked if a device copies from it. Nothing else of the checkpoint is ever in
memory.

Several threads process spans of rows independently: splitting each small conversion over all cores,
as torch would, costs more than the conversion itself when the machine is busy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from rtp_llm.device import Device
from rtp_llm.layers import NotLocal, WeightTarget, loads_last, weight_targets
from rtp_llm.loader.checkpoint import Checkpoint
from rtp_llm.loader.progress import Progress
from rtp_llm.loader.span import Span, spans_of
from rtp_llm.loader.span_reader import Read, reader
from rtp_llm.loader.staging import Staging
from rtp_llm.loader.weight_checks import WeightError

_SPAN_BYTES = 32 * 2**20
_MAX_THREADS = 8

Targets = dict[str, list[WeightTarget]]


def load_weights(
    model: nn.Module,
    checkpoint: Checkpoint,
    progress: Progress,
    device: Device,
) -> None:
    """Fill every parameter of `model`, which is on `device` and was checked by check_weights."""
    targets: Targets = defaultdict(list)
    for name, target in weight_targets(model):
        targets[name].append(target)
    spans = [
        span
        for name, entry in checkpoint.tensors.items()
        if (places := _local(targets.get(name, [])))
        for whole in spans_of(entry, places)
        for span in whole.chunks(_SPAN_BYTES)
    ]
    progress.start(sum(span.size for span in spans))
    staging = Staging(device)
    with _workers(device) as workers:
        # Weights that are converted with their scales follow them.
        for last in (False, True):
            futures = {
                workers.submit(_load_span, span, staging): span
                for span in spans
                if loads_last(span.targets) == last
            }
            for done in as_completed(futures):
                done.result()
                progress.advance(futures.pop(done).size)
    device.synchronize()
    progress.finish()


def _local(targets: list[WeightTarget]) -> list[WeightTarget]:
    return [target for target in targets if not isinstance(target, NotLocal)]


@contextmanager
def _workers(device: Device) -> Iterator[ThreadPoolExecutor]:
    """A pool of as many threads as torch may use, each of which runs torch single-threaded."""
    threads = torch.get_num_threads()

    def begin() -> None:
        torch.set_num_threads(1)
        device.make_current()

    pool = ThreadPoolExecutor(min(threads, _MAX_THREADS), "loader", initializer=begin)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # the workers' setting also applies to new threads


def _load_span(span: Span, staging: Staging) -> None:
    with reader(span) as read:
        for chunk in span.chunks(staging.size):
            _load_chunk(read, chunk, staging)


def _load_chunk(read: Read, chunk: Span, staging: Staging) -> None:
    rows: Tensor | None = None
    for target in chunk.targets:
        memory = target.destination(chunk.place, chunk.place + chunk.rows)
        if memory is not None and _can_read_into(memory, chunk.entry.dtype):
            read(chunk, memory)
            continue
        if rows is None:
            rows = _shaped(staging.next(chunk.size), chunk)
            read(chunk, rows)
        try:
            target.write(chunk.place, rows)
        except (OverflowError, ValueError) as error:
            raise WeightError(f"{chunk.entry.name} ({chunk.entry.file.name}): {error}") from error
    if rows is not None:
        staging.sent()


def _can_read_into(memory: Tensor, dtype: torch.dtype) -> bool:
    return memory.device.type == "cpu" and memory.dtype == dtype and memory.is_contiguous()


def _shaped(buffer: Tensor, chunk: Span) -> Tensor:
    """View the buffer (uint8) as the rows of `chunk`."""
    return buffer.view(chunk.entry.dtype).view(chunk.rows, *chunk.row_shape)
