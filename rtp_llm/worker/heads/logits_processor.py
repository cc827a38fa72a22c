# SPDX-License-Identifier: Apache-2.0
"""A hook for code that changes logits before anything else does: grammars, bans, budgets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from rtp_llm.device import Device
    from rtp_llm.worker.plan.step_plan import SamplingRows


@dataclass(frozen=True)
class ProcessorRows:
    """The rows of one step that share a processor: P rows.

    ``sequence_ids`` and ``steps`` (index of the token to sample) are int64 [P]. The arrays are
    valid only during the call. A sequence that verifies drafts has a row for each draft too, with a
    history that ends with that draft; if one is rejected, the steps after it are repeated.
    """

    sequence_ids: NDArray[np.int64]
    steps: NDArray[np.int64]
    rows: NDArray[np.int64]
    history_tokens: NDArray[np.int32]
    history_cu: NDArray[np.int32]

    def history(self, index: int) -> NDArray[np.int32]:
        """Prompt and output so far of row ``index`` of this group."""
        row = int(self.rows[index])
        return self.history_tokens[self.history_cu[row] : self.history_cu[row + 1]]


class LogitsProcessor(Protocol):
    """Changes ``logits`` (float32 [P, vocabulary]) in place; -inf forbids a token.

    Called once a step for all the sequences that share the processor object.
    """

    def __call__(self, logits: Tensor, rows: ProcessorRows) -> None: ...


class ProcessorTable:
    """Which slots each processor serves."""

    def __init__(self, num_slots: int, device: Device) -> None:
        self._num_slots = num_slots
        self._device = device
        self._members: dict[int, tuple[LogitsProcessor, NDArray[np.bool_]]] = {}

    def add(self, processors: Iterable[LogitsProcessor], slots: list[int]) -> None:
        """Serve ``slots`` with ``processors``, in the order in which these were first added."""
        for processor in processors:
            entry = (processor, np.zeros(self._num_slots, np.bool_))
            self._members.setdefault(id(processor), entry)[1][slots] = True

    def copy(self, source: int, slots: Sequence[int]) -> None:
        """Serve ``slots`` with the processors of slot ``source``."""
        for _, members in self._members.values():
            members[slots] = members[source]

    def release(self, slots: NDArray[np.int32] | list[int]) -> None:
        """The sequences of ``slots`` have ended; drop processors that serve none any more."""
        for key, (_, members) in list(self._members.items()):
            members[slots] = False
            if not members.any():
                del self._members[key]

    def apply(
        self, logits: Tensor, plan: SamplingRows, previous: NDArray[np.int32] | None = None
    ) -> None:
        """Let every processor change its rows of ``logits`` [R, vocabulary] in place.

        Histories may name rows of the previous step; ``previous`` has the tokens of those rows.
        """
        slots = plan.row_slots
        history = plan.history_tokens
        if previous is not None:
            rows_before = np.flatnonzero(history < 0)
            history = history.copy()
            history[rows_before] = previous[-1 - history[rows_before]]
        for processor, members in self._members.values():
            rows = np.flatnonzero(members[slots])
            if not len(rows):
                continue
            group = ProcessorRows(
                plan.row_ids[rows],
                plan.row_steps[rows],
                rows,
                history,
                plan.history_cu,
            )
            if len(rows) == len(slots):
                processor(logits, group)
                continue
            index = self._device.upload(rows)
            part = logits.index_select(0, index)
            processor(part, group)
            logits.index_copy_(0, index, part)
