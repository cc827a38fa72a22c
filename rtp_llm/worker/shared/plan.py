"""A scheduler's plan, seen from another process."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rtp_llm._runtime import Scheduler

_OF_TOKENS = ("token_ids", "positions")
_OF_SEQUENCES = ("seq_lens", "next_tokens", "previous_tokens", "seq_ids")
_OF_ROWS = ("logit_rows", "row_slots", "draft_tokens", "row_ids", "row_steps")
_CUMULATIVE = ("cu_seqlens_q", "row_cu", "history_cu")
_NAMES = (*_OF_TOKENS, *_OF_SEQUENCES, *_OF_ROWS, *_CUMULATIVE, "history_tokens")
_INT64 = frozenset(("seq_ids", "row_ids", "row_steps"))
_OF_GROUPS = ["slot_mapping", "block_table", "copy_pairs", "state_read", "state_write"]
_NO_TABLE = np.empty((0, 0), np.int32)
_MOST_BYTES = 1 << 40  # of a plan's memory, whose pages exist only once they are written
_FIRST_GROUP = 6  # of the numbers that StepChannel.publish sends


@dataclass(frozen=True)
class PlanLayout:
    """Where the arrays of a scheduler's plan lie in its shared memory of ``size`` bytes."""

    size: int
    offsets: dict[str, int]
    group_offsets: dict[str, tuple[int, ...]]

    @classmethod
    def of(cls, scheduler: Scheduler) -> PlanLayout:
        """That of a scheduler with ``shared_batch``."""
        batch = scheduler.batch
        offset = scheduler.shared_offset
        return cls(
            size=scheduler.shared_memory[1],
            offsets={name: offset(getattr(batch, name)) for name in _NAMES},
            group_offsets={
                name: tuple(offset(array) for array in getattr(batch, name)) for name in _OF_GROUPS
            },
        )

    def check(self) -> None:
        """Raise ValueError for one that came from elsewhere and is no plan's."""
        groups = {len(each) for each in self.group_offsets.values()}
        every = [*self.offsets.values(), *(o for each in self.group_offsets.values() for o in each)]
        if (
            self.offsets.keys() != set(_NAMES)
            or self.group_offsets.keys() != set(_OF_GROUPS)
            or len(groups) != 1
            or not 0 < self.size <= _MOST_BYTES
            or max(every) >= self.size
        ):
            raise ValueError(f"no layout of a plan: {self}")

    @property
    def count(self) -> int:
        """Of the numbers that StepChannel.publish sends."""
        return _FIRST_GROUP + 2 * len(self.group_offsets["slot_mapping"])

    def spans(
        self, numbers: Sequence[int], num_outputs: int, memory: memoryview
    ) -> Iterator[memoryview]:
        """The parts of ``memory`` in which a plan of these ``numbers`` lies, in one order.

        The last one is behind a border that the one before it holds: who fills them does it in
        turn. Raises ValueError for numbers that no plan of this layout has.
        """
        if len(numbers) != self.count or min(*numbers, num_outputs) < 0:
            raise ValueError(f"not the numbers of a plan: {list(numbers)}, {num_outputs} outputs")
        seqs, tokens, rows = numbers[:3]
        widths, copies = numbers[_FIRST_GROUP::2], numbers[_FIRST_GROUP + 1 :: 2]
        lengths = {
            **dict.fromkeys(_OF_TOKENS, tokens),
            **dict.fromkeys(_OF_SEQUENCES, seqs),
            **dict.fromkeys(_OF_ROWS, rows),
            "cu_seqlens_q": seqs + 1,
            "row_cu": num_outputs + 1,
        }
        for name, length in lengths.items():
            yield self._span(memory, self.offsets[name], length, 8 if name in _INT64 else 4)
        of_groups = {
            "slot_mapping": [tokens] * len(widths),
            "block_table": [seqs * width for width in widths],
            "copy_pairs": [2 * count for count in copies],
            "state_read": [seqs] * len(widths),
            "state_write": [seqs] * len(widths),
        }
        for name, counts in of_groups.items():
            for offset, length in zip(self.group_offsets[name], counts, strict=True):
                yield self._span(memory, offset, 0 if offset < 0 else length, 4)
        borders = self._span(memory, self.offsets["history_cu"], rows + 1, 4)
        yield borders
        history = int(np.frombuffer(borders, np.int32)[-1])
        yield self._span(memory, self.offsets["history_tokens"], history, 4)

    def _span(self, memory: memoryview, offset: int, length: int, width: int) -> memoryview:
        end = max(offset, 0) + length * width
        if length < 0 or end > min(self.size, len(memory)):
            raise ValueError(f"a plan has no {length} numbers at {offset} of {self.size} bytes")
        return memory[max(offset, 0) : end]


class PlanReader:
    """Copies plans out of the memory that the scheduler fills, which is then free for the next."""

    def __init__(self, layout: PlanLayout, descriptor: int) -> None:
        memory = mmap.mmap(descriptor, layout.size, access=mmap.ACCESS_WRITE)

        def array(offset: int, dtype: type[np.generic]) -> NDArray[Any]:
            if offset < 0:  # of another kind of cache group
                return np.empty(0, dtype)
            count = (layout.size - offset) // np.dtype(dtype).itemsize
            return np.frombuffer(memory, dtype, count, offset)

        self._arrays = {
            name: array(layout.offsets[name], np.int64 if name in _INT64 else np.int32)
            for name in _NAMES
        }
        self._groups = {
            name: tuple(array(offset, np.int32) for offset in layout.group_offsets[name])
            for name in _OF_GROUPS
        }
        self.count = layout.count

    def read(self, numbers: Sequence[int], num_outputs: int) -> CopiedPlan:
        """The plan of these ``numbers`` (`count` of them, as StepChannel.publish sends them)."""
        num_seqs, num_tokens, num_rows, max_seqlen_q, max_seqlen_k, flags = numbers[:_FIRST_GROUP]
        arrays, groups = self._arrays, self._groups

        def copied(lengths: dict[str, int]) -> dict[str, NDArray[Any]]:
            return {name: arrays[name][:length].copy() for name, length in lengths.items()}

        history_cu = arrays["history_cu"][: num_rows + 1].copy()
        widths, copies = numbers[_FIRST_GROUP::2], numbers[_FIRST_GROUP + 1 :: 2]
        tables = zip(groups["block_table"], widths, strict=True)
        pairs = zip(groups["copy_pairs"], copies, strict=True)
        return CopiedPlan(
            num_seqs=num_seqs,
            num_tokens=num_tokens,
            num_rows=num_rows,
            num_outputs=num_outputs,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
            sampling_flags=flags,
            **copied(dict.fromkeys(_OF_TOKENS, num_tokens)),
            **copied(dict.fromkeys(_OF_SEQUENCES, num_seqs)),
            **copied(dict.fromkeys(_OF_ROWS, num_rows)),
            cu_seqlens_q=arrays["cu_seqlens_q"][: num_seqs + 1].copy(),
            row_cu=arrays["row_cu"][: num_outputs + 1].copy(),
            history_cu=history_cu,
            history_tokens=arrays["history_tokens"][: int(history_cu[-1])].copy(),
            slot_mapping=tuple(each[:num_tokens].copy() for each in groups["slot_mapping"]),
            block_table=tuple(
                each[: num_seqs * width].reshape(-1, width).copy() if width else _NO_TABLE
                for each, width in tables
            ),
            copy_pairs=tuple(each[: 2 * count].reshape(count, 2).copy() for each, count in pairs),
            state_read=tuple(each[:num_seqs].copy() for each in groups["state_read"]),
            state_write=tuple(each[:num_seqs].copy() for each in groups["state_write"]),
        )


@dataclass(frozen=True)
class CopiedPlan:
    """A StepPlan whose arrays nobody else writes."""

    num_seqs: int
    num_tokens: int
    num_rows: int
    num_outputs: int
    max_seqlen_q: int
    max_seqlen_k: int
    sampling_flags: int
    token_ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    cu_seqlens_q: NDArray[np.int32]
    seq_lens: NDArray[np.int32]
    next_tokens: NDArray[np.int32]
    previous_tokens: NDArray[np.int32]
    seq_ids: NDArray[np.int64]
    slot_mapping: tuple[NDArray[np.int32], ...]
    block_table: tuple[NDArray[np.int32], ...]
    copy_pairs: tuple[NDArray[np.int32], ...]
    state_read: tuple[NDArray[np.int32], ...]
    state_write: tuple[NDArray[np.int32], ...]
    logit_rows: NDArray[np.int32]
    row_cu: NDArray[np.int32]
    row_ids: NDArray[np.int64]
    row_slots: NDArray[np.int32]
    row_steps: NDArray[np.int64]
    draft_tokens: NDArray[np.int32]
    history_tokens: NDArray[np.int32]
    history_cu: NDArray[np.int32]
