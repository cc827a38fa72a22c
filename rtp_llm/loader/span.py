# SPDX-License-Identifier: Apache-2.0
"""Spans: rows of a checkpoint tensor to read, and their destination."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rtp_llm.layers import Shard, ShardTarget, WeightTarget, local_target, rows_together
from rtp_llm.loader.row_changes import ChangingTarget
from rtp_llm.loader.tensor_entry import TensorEntry


@dataclass(frozen=True)
class Span:
    """Rows `start` to `stop` of a tensor, and their destination, from row `place` of the targets.

    `columns` is the half-open range of columns to load; None: all of them.
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
        """Bytes that are read of each row."""
        return math.prod(self.row_shape) * self.entry.dtype.itemsize

    @property
    def size(self) -> int:
        """Bytes that are read in all."""
        return self.rows * self.row_bytes

    @property
    def offset(self) -> int:
        """Offset in the file of the first byte to read."""
        before = 0
        if self.columns is not None:
            before = self.columns[0] * (self.entry.row_bytes // self.entry.shape[1])
        return self.entry.offset + self.start * self.entry.row_bytes + before

    def chunks(self, size: int) -> Iterator[Span]:
        """Split the span into chunks of about `size` bytes, at least one row each.

        Chunks begin at multiples of the number of rows that a target takes together.
        """
        together = rows_together(self.targets)
        step = max(1, size // max(1, self.row_bytes) // together) * together
        for start in range(self.start, self.stop, step):
            stop, place = min(start + step, self.stop), self.place + start - self.start
            yield replace(self, start=start, stop=stop, place=place)


def spans_of(entry: TensorEntry, targets: list[WeightTarget]) -> Iterator[Span]:
    """The spans to read of a tensor; targets that take the same part share one span."""
    takers: dict[tuple[Shard | None, Shard | None], list[WeightTarget]] = defaultdict(list)
    for target in targets:
        shards = (target.rows, target.columns) if isinstance(target, ShardTarget) else (None, None)
        local = local_target(target)
        if entry.change is not None and entry.change.moves:
            local = ChangingTarget(local, entry.change, *shards)
            shards = None, None
        elif entry.change is not None:
            local = ChangingTarget(local, entry.change)
        takers[shards].append(local)
    for (rows, columns), inside in takers.items():
        taken = None if columns is None else columns.ranges[0]
        place = 0
        for start, stop in ((0, entry.shape[0]),) if rows is None else rows.ranges:
            span = Span(entry, start, stop, inside, place, taken)
            yield span
            place += span.rows
