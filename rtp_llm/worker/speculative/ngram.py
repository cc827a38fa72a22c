"""Drafts from what a sequence has said, or was asked, before: prompt lookup decoding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rtp_llm.native import load_runtime

if TYPE_CHECKING:
    from rtp_llm._runtime import Drafts, Result
    from rtp_llm.worker.new_sequences import NewSequences
    from rtp_llm.worker.plan import StepPlan


class NgramProposer:
    """The runtime's NgramProposer, which sees the tokens of a step once it is committed."""

    needs_tokens = True

    def __init__(self, min_n: int, max_n: int, num_tokens: int) -> None:
        """Drafts of ``num_tokens`` that followed n-grams of ``min_n`` to ``max_n`` tokens."""
        self.max_draft_tokens = num_tokens
        self._native = load_runtime().NgramProposer(min_n=min_n, max_n=max_n, num_tokens=num_tokens)

    def add(self, sequences: NewSequences) -> None:
        if sequences.params.speculate:
            self._native.add(sequences.ids, sequences.prompt)

    def end(self, ids: Iterable[int]) -> None:
        self._native.end(list(ids))

    def propose(self, in_flight: StepPlan | None) -> Drafts | None:
        drafts: Drafts | None = self._native.propose()
        return drafts

    def observe(self, result: Result) -> None:
        self._native.observe(result)
