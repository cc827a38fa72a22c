# SPDX-License-Identifier: Apache-2.0
"""Which hidden states of a step go back from the last stage of a pipeline to the first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from rtp_llm.worker.new_sequences import NewSequences
from rtp_llm.worker.plan.step_plan import StepPlan


class ReturnedRows:
    """Those that tokens are sampled from; all of a step in which a prompt is scored or pooled.

    The first stage and the last one come to the same answer: they hear of the same sequences and
    plans in the same order.
    """

    def __init__(self) -> None:
        # Of sequences all of whose prompt's states are wanted: its length, and who shares it.
        self._prompts: dict[int, tuple[int, Sequence[int]]] = {}

    def add(self, sequences: NewSequences) -> None:
        """Sequences that later plans name."""
        if sequences.pooling or sequences.params.prompt_logprobs is not None:
            wish = len(sequences.prompt), tuple(sequences.ids)
            self._prompts.update(dict.fromkeys(sequences.ids, wish))

    def end(self, ids: Iterable[int]) -> None:
        """Sequences that no later plan names."""
        for each in ids:
            self._prompts.pop(each, None)

    def of(self, plan: StepPlan) -> NDArray[np.int32] | None:
        """Tokens of the step, int32 [R]; None: all. To be asked once for each plan."""
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
            if first + end - begin >= length:  # a prompt that is computed again is not asked for
                self.end(everyone)
        return None if wanted else plan.logit_rows
