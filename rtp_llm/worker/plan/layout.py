# SPDX-License-Identifier: Apache-2.0
"""Where a scheduler's plan lies in memory that ranks in other processes see."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rtp_llm.worker.plan.arrays import ARRAYS, GROUP_ARRAYS, NUMBERS
from rtp_llm.worker.plan.extents import Extent

if TYPE_CHECKING:
    from rtp_llm._runtime import Scheduler

_MAX_BYTES = 1 << 40  # of a plan's memory, whose pages exist only once they are written


@dataclass(frozen=True)
class PlanSizes:
    """The numbers of one plan, and the shapes of its arrays, which follow from them.

    ``lengths`` has the extents of every array but ``history_tokens``, which ``history_cu``
    measures, and of those per group whose shape does not depend on the group.
    """

    numbers: dict[str, int]
    lengths: dict[Extent, int]
    table_widths: Sequence[int]
    copies: Sequence[int]

    @classmethod
    def of(cls, published: Sequence[int]) -> PlanSizes:
        """The sizes of a plan of which StepChannel.publish sent these numbers."""
        count = len(NUMBERS)
        numbers = dict(zip(NUMBERS, published[:count], strict=True))
        tokens, sequences, rows = (numbers[f"num_{each}"] for each in ("tokens", "seqs", "rows"))
        lengths = {
            Extent.TOKENS: tokens,
            Extent.TOKEN_AXES: tokens,
            Extent.SEQUENCES: sequences,
            Extent.ROWS: rows,
            Extent.SEQUENCE_STARTS: sequences + 1,
            Extent.OUTPUT_STARTS: numbers["num_outputs"] + 1,
            Extent.ROW_STARTS: rows + 1,
            Extent.GROUP_TOKENS: tokens,
            Extent.GROUP_STATES: sequences,
        }
        return cls(numbers, lengths, published[count::2], published[count + 1 :: 2])

    def shape(self, extent: Extent) -> tuple[int, ...]:
        """The shape of an array that every group shares."""
        length = self.lengths[extent]
        return (length,) if extent.width == 1 else (length, extent.width)

    def group_shape(self, extent: Extent, group: int) -> tuple[int, ...]:
        """The shape of an array of cache group ``group``, which has such arrays."""
        if extent is Extent.GROUP_TABLE:
            return self.lengths[Extent.SEQUENCES], self.table_widths[group]
        if extent is Extent.GROUP_COPIES:
            return self.copies[group], 2
        return (self.lengths[extent],)


@dataclass(frozen=True)
class PlanLayout:
    """Where the arrays of a scheduler's plan lie in its shared memory of ``size`` bytes.

    An array that a cache group of another kind, or the scheduler, does not have is at a negative
    offset.
    """

    size: int
    offsets: dict[str, int]
    group_offsets: dict[str, tuple[int, ...]]

    @classmethod
    def of(cls, scheduler: Scheduler) -> PlanLayout:
        """The layout of a scheduler with ``shared_batch``."""
        batch, offset = scheduler.batch, scheduler.shared_offset
        return cls(
            size=scheduler.shared_memory[1],
            offsets={each.name: offset(getattr(batch, each.name)) for each in ARRAYS},
            group_offsets={
                each.name: tuple(offset(array) for array in getattr(batch, each.name))
                for each in GROUP_ARRAYS
            },
        )

    def check(self) -> None:
        """Raise ValueError for a layout from another machine that is not one of a plan."""
        groups = {len(each) for each in self.group_offsets.values()}
        every = [*self.offsets.values(), *(o for each in self.group_offsets.values() for o in each)]
        if (
            self.offsets.keys() != {each.name for each in ARRAYS}
            or self.group_offsets.keys() != {each.name for each in GROUP_ARRAYS}
            or len(groups) != 1
            or not 0 < self.size <= _MAX_BYTES
            or max(every) >= self.size
        ):
            raise ValueError(f"not the layout of a plan: {self}")

    @property
    def count(self) -> int:
        """How many numbers StepChannel.publish sends."""
        return len(NUMBERS) + 2 * len(self.group_offsets["block_table"])

    def spans(self, published: Sequence[int], memory: memoryview) -> Iterator[memoryview]:
        """The parts of ``memory`` that hold a plan of these ``published`` numbers, in one order.

        How long the last part is says one before it: who fills them does it in turn. Raises
        ValueError for numbers that no plan of this layout has.
        """
        if len(published) != self.count or min(published) < 0:
            raise ValueError(f"not the numbers of a plan: {list(published)}")
        sizes = PlanSizes.of(published)
        for each in ARRAYS:
            if each.extent is not Extent.HISTORY:
                offset = self.offsets[each.name]
                length = 0 if offset < 0 else math.prod(sizes.shape(each.extent))
                yield self._span(memory, offset, length * each.dtype.itemsize)
        for each in GROUP_ARRAYS:
            for group, offset in enumerate(self.group_offsets[each.name]):
                length = 0 if offset < 0 else math.prod(sizes.group_shape(each.extent, group))
                yield self._span(memory, offset, length * each.dtype.itemsize)
        starts = sizes.lengths[Extent.ROW_STARTS]
        borders = self._span(memory, self.offsets["history_cu"], starts * 4)
        history = int(np.frombuffer(borders, np.int32)[-1])
        yield self._span(memory, self.offsets["history_tokens"], history * 4)

    def _span(self, memory: memoryview, offset: int, size: int) -> memoryview:
        start = max(offset, 0)
        if size < 0 or start + size > min(self.size, len(memory)):
            raise ValueError(f"a plan of {self.size} bytes has no {size} bytes at {offset}")
        return memory[start : start + size]
