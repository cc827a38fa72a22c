# SPDX-License-Identifier: Apache-2.0
"""The heads that read hidden states of prompts, in a table: scores and pooled vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rtp_llm.worker.heads.pool import PoolHead
from rtp_llm.worker.heads.score import ScoreHead

if TYPE_CHECKING:
    from torch import Tensor

    from rtp_llm.worker.heads.prompt_outputs import PromptOutput
    from rtp_llm.worker.model_runner import ModelRunner
    from rtp_llm.worker.new_sequences import NewSequences
    from rtp_llm.worker.plan.step_plan import HeadPlan


class PromptHead(Protocol):
    """Makes outputs of prompts whose hidden states pass through steps, chunk by chunk."""

    def __init__(self, runner: ModelRunner) -> None: ...

    def add(self, sequences: NewSequences) -> None:
        """Take the prompt of a request if its ``params`` ask for this output."""

    def remove(self, sequence: int) -> None:
        """Forget a sequence that was aborted."""

    def submit(self, hidden: Tensor, plan: HeadPlan) -> Sequence[Any]:
        """Begin what the hidden states [T, C] of a step give; never waits. For `read`."""

    def read(self, parts: Any) -> tuple[Sequence[PromptOutput], Sequence[frozenset[int]]]:
        """What was begun, except of aborted sequences; waits for the device. The sequences of each
        request with NaN or infinity are apart."""


PROMPT_HEADS: dict[str, type[PromptHead]] = {"score": ScoreHead, "pool": PoolHead}


class PromptHeads:
    """All of them, for a worker that calls them together."""

    def __init__(self, runner: ModelRunner) -> None:
        self._heads = {name: head(runner) for name, head in PROMPT_HEADS.items()}

    def __getitem__(self, name: str) -> PromptHead:
        return self._heads[name]

    def add(self, sequences: NewSequences) -> None:
        """Add sequences that later plans name."""
        for head in self._heads.values():
            head.add(sequences)

    def remove(self, sequence: int) -> None:
        """Forget a sequence that was aborted."""
        for head in self._heads.values():
            head.remove(sequence)

    def submit(self, hidden: Tensor, plan: HeadPlan) -> dict[str, Sequence[Any]]:
        """What each head begins with a step's hidden states [T, C], if anything; never waits."""
        begun = {name: head.submit(hidden, plan) for name, head in self._heads.items()}
        return {name: parts for name, parts in begun.items() if parts}

    def read(
        self, begun: dict[str, Sequence[Any]]
    ) -> tuple[list[PromptOutput], list[frozenset[int]]]:
        """The outputs, and the sequences of each request with NaN or infinity; waits for the
        device."""
        outputs: list[PromptOutput] = []
        broken: list[frozenset[int]] = []
        for name, parts in begun.items():
            found, failed = self._heads[name].read(parts)
            outputs += found
            broken += failed
        return outputs, broken
