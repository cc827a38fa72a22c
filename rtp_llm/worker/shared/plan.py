"""A scheduler's plan, seen from another process."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rtp_llm.worker.plan import StepPlan

if TYPE_CHECKING:
    from rtp_llm._runtime import Scheduler, StepChannel

_INT32 = [
    "token_ids",
    "positions",
    "cu_seqlens_q",
    "seq_lens",
    "next_tokens",
    "previous_tokens",
    "logit_rows",
    "row_cu",
    "row_slots",
    "draft_tokens",
    "history_tokens",
    "history_cu",
]
_INT64 = ["seq_ids", "row_ids", "row_steps"]
_OF_GROUPS = ["slot_mapping", "block_table", "copy_pairs", "state_read", "state_write"]
_NO_TABLE = np.empty((0, 0), np.int32)
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
            offsets={name: offset(getattr(batch, name)) for name in (*_INT32, *_INT64)},
            group_offsets={
                name: tuple(offset(array) for array in getattr(batch, name)) for name in _OF_GROUPS
            },
        )


class SharedPlan(StepPlan):
    """The plan that was published last; valid until it is taken."""

    def __init__(self, layout: PlanLayout, descriptor: int) -> None:
        memory = mmap.mmap(descriptor, layout.size, access=mmap.ACCESS_WRITE)

        def array(offset: int, dtype: type[np.generic]) -> NDArray[Any]:
            if offset < 0:  # of another kind of cache group
                return np.empty(0, dtype)
            count = (layout.size - offset) // np.dtype(dtype).itemsize
            return np.frombuffer(memory, dtype, count, offset)

        self._arrays = {name: array(layout.offsets[name], np.int32) for name in _INT32}
        self._arrays |= {name: array(layout.offsets[name], np.int64) for name in _INT64}
        self._groups = {
            name: tuple(array(offset, np.int32) for offset in layout.group_offsets[name])
            for name in _OF_GROUPS
        }
        self._count = _FIRST_GROUP + 2 * len(self._groups["slot_mapping"])
        self._numbers = [0] * self._count

    def read_numbers(self, channel: StepChannel) -> None:
        """A step was published."""
        self._numbers = channel.numbers(self._count)

    @property
    def num_seqs(self) -> int:
        return self._numbers[0]

    @property
    def num_tokens(self) -> int:
        return self._numbers[1]

    @property
    def num_rows(self) -> int:
        return self._numbers[2]

    @property
    def num_outputs(self) -> int:
        return self.num_rows  # drafts are refused: see ProcessWorker

    @property
    def max_seqlen_q(self) -> int:
        return self._numbers[3]

    @property
    def max_seqlen_k(self) -> int:
        return self._numbers[4]

    @property
    def sampling_flags(self) -> int:
        return self._numbers[5]

    @property
    def token_ids(self) -> NDArray[np.int32]:
        return self._arrays["token_ids"][: self.num_tokens]

    @property
    def positions(self) -> NDArray[np.int32]:
        return self._arrays["positions"][: self.num_tokens]

    @property
    def cu_seqlens_q(self) -> NDArray[np.int32]:
        return self._arrays["cu_seqlens_q"][: self.num_seqs + 1]

    @property
    def seq_lens(self) -> NDArray[np.int32]:
        return self._arrays["seq_lens"][: self.num_seqs]

    @property
    def next_tokens(self) -> NDArray[np.int32]:
        return self._arrays["next_tokens"][: self.num_seqs]

    @property
    def previous_tokens(self) -> NDArray[np.int32]:
        return self._arrays["previous_tokens"][: self.num_seqs]

    @property
    def seq_ids(self) -> NDArray[np.int64]:
        return self._arrays["seq_ids"][: self.num_seqs]

    @property
    def slot_mapping(self) -> tuple[NDArray[np.int32], ...]:
        return tuple(array[: self.num_tokens] for array in self._groups["slot_mapping"])

    @property
    def block_table(self) -> tuple[NDArray[np.int32], ...]:
        widths = self._numbers[_FIRST_GROUP::2]
        return tuple(
            array[: self.num_seqs * width].reshape(-1, width) if width else _NO_TABLE
            for array, width in zip(self._groups["block_table"], widths, strict=True)
        )

    @property
    def state_read(self) -> tuple[NDArray[np.int32], ...]:
        return tuple(array[: self.num_seqs] for array in self._groups["state_read"])

    @property
    def state_write(self) -> tuple[NDArray[np.int32], ...]:
        return tuple(array[: self.num_seqs] for array in self._groups["state_write"])

    @property
    def copy_pairs(self) -> tuple[NDArray[np.int32], ...]:
        counts = self._numbers[_FIRST_GROUP + 1 :: 2]
        return tuple(
            array[: 2 * count].reshape(count, 2)
            for array, count in zip(self._groups["copy_pairs"], counts, strict=True)
        )

    @property
    def logit_rows(self) -> NDArray[np.int32]:
        return self._arrays["logit_rows"][: self.num_rows]

    @property
    def row_cu(self) -> NDArray[np.int32]:
        return self._arrays["row_cu"][: self.num_outputs + 1]

    @property
    def draft_tokens(self) -> NDArray[np.int32]:
        return self._arrays["draft_tokens"][: self.num_rows]

    @property
    def row_ids(self) -> NDArray[np.int64]:
        return self._arrays["row_ids"][: self.num_rows]

    @property
    def row_slots(self) -> NDArray[np.int32]:
        return self._arrays["row_slots"][: self.num_rows]

    @property
    def row_steps(self) -> NDArray[np.int64]:
        return self._arrays["row_steps"][: self.num_rows]

    @property
    def history_tokens(self) -> NDArray[np.int32]:
        return self._arrays["history_tokens"][: int(self.history_cu[-1])]

    @property
    def history_cu(self) -> NDArray[np.int32]:
        return self._arrays["history_cu"][: self.num_rows + 1]
