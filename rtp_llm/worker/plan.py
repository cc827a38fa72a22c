"""What one step computes, as every worker sees it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class SamplingRows(Protocol):
    """R rows that each get a token, and the histories that it depends on.

    ``history_tokens[history_cu[r] : history_cu[r + 1]]`` is row r's, where one is wanted.
    """

    @property
    def num_rows(self) -> int: ...
    @property
    def sampling_flags(self) -> int: ...
    @property
    def row_ids(self) -> NDArray[np.int64]: ...
    @property
    def row_slots(self) -> NDArray[np.int32]: ...
    @property
    def row_steps(self) -> NDArray[np.int64]: ...
    @property
    def history_tokens(self) -> NDArray[np.int32]: ...
    @property
    def history_cu(self) -> NDArray[np.int32]: ...


class StepPlan(SamplingRows, Protocol):
    """B sequences with T tokens in all, R rows that get a token, O outputs they belong to.

    The scheduler fills it; its arrays are views of memory that stays in place, and what they show
    changes with the next schedule or commit. See Batch in rtp_llm/_runtime.pyi, also for the
    histories of drafts.
    """

    @property
    def num_seqs(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_outputs(self) -> int: ...
    @property
    def max_seqlen_q(self) -> int: ...
    @property
    def max_seqlen_k(self) -> int: ...
    @property
    def token_ids(self) -> NDArray[np.int32]: ...
    @property
    def positions(self) -> NDArray[np.int32]: ...
    @property
    def cu_seqlens_q(self) -> NDArray[np.int32]: ...
    @property
    def seq_lens(self) -> NDArray[np.int32]: ...
    @property
    def next_tokens(self) -> NDArray[np.int32]: ...
    @property
    def previous_tokens(self) -> NDArray[np.int32]: ...
    @property
    def seq_ids(self) -> NDArray[np.int64]: ...
    @property
    def slot_mapping(self) -> tuple[NDArray[np.int32], ...]: ...
    @property
    def block_table(self) -> tuple[NDArray[np.int32], ...]: ...
    @property
    def state_read(self) -> tuple[NDArray[np.int32], ...]: ...
    @property
    def state_write(self) -> tuple[NDArray[np.int32], ...]: ...
    @property
    def copy_pairs(self) -> tuple[NDArray[np.int32], ...]: ...
    @property
    def logit_rows(self) -> NDArray[np.int32]: ...
    @property
    def row_cu(self) -> NDArray[np.int32]: ...
    @property
    def draft_tokens(self) -> NDArray[np.int32]: ...


@dataclass(frozen=True)
class KeptPlan:
    """A plan's numbers that heads read, in arrays of its own: the plan may change meanwhile."""

    num_seqs: int
    num_tokens: int
    num_rows: int
    num_outputs: int
    sampling_flags: int
    seq_ids: NDArray[np.int64]
    positions: NDArray[np.int32]
    cu_seqlens_q: NDArray[np.int32]
    logit_rows: NDArray[np.int32]
    row_cu: NDArray[np.int32]
    row_ids: NDArray[np.int64]
    row_slots: NDArray[np.int32]
    row_steps: NDArray[np.int64]
    draft_tokens: NDArray[np.int32]
    history_tokens: NDArray[np.int32]
    history_cu: NDArray[np.int32]

    @classmethod
    def of(cls, plan: StepPlan) -> KeptPlan:
        """Of a plan as it is now."""
        copied: dict[str, Any] = {}
        for each in fields(cls):
            value = getattr(plan, each.name)
            copied[each.name] = np.array(value) if isinstance(value, np.ndarray) else value
        return cls(**copied)


class HeadPlan(SamplingRows, Protocol):
    """What heads read of a plan."""

    @property
    def num_seqs(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_outputs(self) -> int: ...
    @property
    def seq_ids(self) -> NDArray[np.int64]: ...
    @property
    def positions(self) -> NDArray[np.int32]: ...
    @property
    def cu_seqlens_q(self) -> NDArray[np.int32]: ...
    @property
    def logit_rows(self) -> NDArray[np.int32]: ...
    @property
    def row_cu(self) -> NDArray[np.int32]: ...
    @property
    def draft_tokens(self) -> NDArray[np.int32]: ...


def rows_are_tokens(logit_rows: NDArray[np.int32], num_tokens: int) -> bool:
    """Whether row r is that of token r, for all of them: no sequence computes its prompt."""
    rows = len(logit_rows)
    return rows == num_tokens and bool((logit_rows == np.arange(rows)).all())
