# SPDX-License-Identifier: Apache-2.0
"""Which hidden states of a step go back from the last stage of a pipeline to the first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from rtp_llm.worker.new_sequences import NewSequences
from rtp_llm.worker.plan.step_plan import StepPlan


class ReturnedRows:
    """The rows that tokens are sampled from, or all rows of a step that scores or pools a prompt.

    The first and the last stage arrive at the same answer, since they receive the same sequences
    and plans in the same order.
    """

    def __init__(self) -> None:
        # For sequences that need all states of their prompt: its length, and who shares it.
        self._prompts: dict[int, tuple[int, Sequence[int]]] = {}

    def add(self, sequences: NewSequences) -> None:
        """Add sequences that later plans name."""
        params = sequences.params
        if sequences.prompt_only or params.prompt_logprobs is not None:
            prompt = len(sequences.prompt), tuple(sequences.ids)
            self._prompts.update(dict.fromkeys(sequences.ids, prompt))

    def end(self, ids: Iterable[int]) -> None:
        """Remove sequences that no later plan names."""
        for each in ids:
            self._prompts.pop(each, None)

    def of(self, plan: StepPlan) -> NDArray[np.int32] | None:
        """Tokens of the step, int32 [R]; None: all of them. Must be called once per plan."""
        if not self._prompts:
            return plan.logit_rows
        wanted = False
        for place in np.flatnonzero(np.isin(plan.seq_ids, list(self._prompts))).tolist():
            if int(plan.seq_ids[place]) not in self._prompts:
                continue
            begin, end = plan.cu_seqlens_q[place : place + 2].tolist()
            first = int(plan.positions[begin])
            length, everyone = self._prompts[int(plan.seq_ids[place])]
            wanted = wanted or first < length
            if first + end - begin >= length:  # a recomputed prompt is not needed again
                self.end(everyone)
        return None if wanted else plan.logit_rows
