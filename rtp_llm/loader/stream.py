"""Moves a checkpoint's tensors into a model, a few rows at a time.

Where the type is the same the file is read straight into the parameter; otherwise rows pass through
a small buffer, page-locked where a device copies from it. Nothing else of the checkpoint is ever in
memory.

Several threads work on spans of rows, each of them alone: sharing each small conversion among all
cores, as torch would, costs more than the conversion itself when the machine is busy.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from rtp_llm.device import Device
from rtp_llm.layers import (
    Cut,
    CutTarget,
    Elsewhere,
    WeightTarget,
    part_taken,
    rows_together,
    weight_targets,
)
from rtp_llm.loader.checkpoint import Checkpoint, CheckpointError, TensorEntry
from rtp_llm.loader.plan import WeightError
from rtp_llm.loader.progress import Progress
from rtp_llm.loader.staging import Staging
from rtp_llm.model_folder import open_file
from rtp_llm.quantization.fp8 import SCALE_NAME

_SPAN_BYTES = 32 * 2**20
_MOST_THREADS = 8

Targets = dict[str, list[WeightTarget]]


def load_weights(
    model: nn.Module,
    checkpoint: Checkpoint,
    progress: Progress,
    device: Device,
) -> None:
    """Fill every parameter of `model`, which is on `device` and was held against the checkpoint."""
    targets: Targets = defaultdict(list)
    for name, target in weight_targets(model):
        targets[name].append(target)
    spans = [
        span
        for name, entry in checkpoint.tensors.items()
        if (places := _here(targets.get(name, [])))
        for span in _spans(entry, places)
    ]
    progress.start(sum(span.size for span in spans))
    staging = Staging(device)
    with _workers(device) as workers:
        # Weights are converted by their scales, so these are all there before.
        for scales in (True, False):
            futures = {
                workers.submit(_load_span, span, staging): span
                for span in spans
                if span.entry.name.endswith(SCALE_NAME) == scales
            }
            for done in as_completed(futures):
                done.result()
                progress.advance(futures.pop(done).size)
    device.synchronize()
    progress.finish()


def _here(targets: list[WeightTarget]) -> list[WeightTarget]:
    return [target for target in targets if not isinstance(target, Elsewhere)]


@dataclass(frozen=True)
class _Span:
    """Rows `start` to `stop` of a tensor, and where they go: to row `place` of the targets on.

    `columns`: the first and what is behind the last one that go there; None: all do.
    """

    entry: TensorEntry
    start: int
    stop: int
    targets: list[WeightTarget]
    place: int = 0
    columns: tuple[int, int] | None = None

    @property
    def rows(self) -> int:
        return self.stop - self.start

    @property
    def row_shape(self) -> tuple[int, ...]:
        if self.columns is None:
            return self.entry.shape[1:]
        return self.columns[1] - self.columns[0], *self.entry.shape[2:]

    @property
    def row_bytes(self) -> int:
        return math.prod(self.row_shape) * self.entry.dtype.itemsize

    @property
    def size(self) -> int:
        return self.rows * self.row_bytes

    def pieces(self, size: int) -> Iterator[_Span]:
        """The span in pieces of about `size` bytes, at least a row each.

        Pieces begin at multiples of the rows that a target takes together.
        """
        together = rows_together(self.targets)
        step = max(1, size // max(1, self.row_bytes) // together) * together
        for start in range(self.start, self.stop, step):
            stop, place = min(start + step, self.stop), self.place + start - self.start
            yield replace(self, start=start, stop=stop, place=place)


def _spans(entry: TensorEntry, targets: list[WeightTarget]) -> Iterator[_Span]:
    """What is read of a tensor; once for all targets that take the same part of it."""
    takers: dict[tuple[Cut | None, Cut | None], list[WeightTarget]] = defaultdict(list)
    for target in targets:
        cuts = (target.rows, target.columns) if isinstance(target, CutTarget) else (None, None)
        takers[cuts].append(part_taken(target))
    for (rows, columns), inside in takers.items():
        place = 0
        for start, stop in ((0, entry.shape[0]),) if rows is None else rows.runs:
            taken = None if columns is None else columns.runs[0]
            span = _Span(entry, start, stop, inside, place, taken)
            yield from span.pieces(_SPAN_BYTES)
            place += span.rows


@contextmanager
def _workers(device: Device) -> Iterator[ThreadPoolExecutor]:
    """As many threads as torch may use, in each of which it uses that one alone."""
    threads = torch.get_num_threads()

    def begin() -> None:
        torch.set_num_threads(1)
        device.make_current()

    pool = ThreadPoolExecutor(min(threads, _MOST_THREADS), "loader", initializer=begin)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # the workers set it for threads to come, too


def _load_span(span: _Span, staging: Staging) -> None:
    with open_file(span.entry.file) as file:
        for piece in span.pieces(staging.size):
            _load_piece(file.fileno(), piece, staging)


def _load_piece(file: int, piece: _Span, staging: Staging) -> None:
    rows: Tensor | None = None
    for target in piece.targets:
        memory = target.destination(piece.place, piece.place + piece.rows)
        if memory is not None and _can_read_into(memory, piece.entry.dtype):
            _read(file, piece, memory)
            continue
        if rows is None:
            rows = _shaped(staging.next(piece.size), piece)
            _read(file, piece, rows)
        try:
            target.write(piece.place, rows)
        except (OverflowError, ValueError) as error:
            raise WeightError(f"{piece.entry.name} ({piece.entry.file.name}): {error}") from error
    if rows is not None:
        staging.sent()


def _can_read_into(memory: Tensor, dtype: torch.dtype) -> bool:
    return memory.device.type == "cpu" and memory.dtype == dtype and memory.is_contiguous()


def _shaped(buffer: Tensor, piece: _Span) -> Tensor:
    """The buffer (uint8) as rows of the piece."""
    return buffer.view(piece.entry.dtype).view(piece.rows, *piece.row_shape)


def _read(file: int, piece: _Span, memory: Tensor) -> None:
    """Fill `memory` (contiguous, of the entry's type) with the rows of the piece."""
    if memory.numel() == 0:
        return
    entry = piece.entry
    content: memoryview = memory.view(-1).view(torch.uint8).numpy().data
    offset = entry.offset + piece.start * entry.row_bytes
    if piece.columns is None:
        _fill(file, content, offset, entry)
        return
    # A call for each row: what lies between, which other ranks take, is not read.
    width = piece.row_bytes
    offset += piece.columns[0] * (entry.row_bytes // entry.shape[1])
    for row in range(piece.rows):
        _fill(file, content[row * width : (row + 1) * width], offset, entry)
        offset += entry.row_bytes


def _fill(file: int, content: memoryview, offset: int, entry: TensorEntry) -> None:
    """Read as many bytes from `offset` on."""
    while content:
        count = os.preadv(file, [content], offset)
        if count == 0:
            raise CheckpointError(f"{entry.file} became shorter while it was read")
        content, offset = content[count:], offset + count
