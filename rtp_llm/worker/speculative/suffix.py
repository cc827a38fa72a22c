"""Drafts from what sequences have said before, by how often: SuffixDecoding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rtp_llm.native import load_runtime

if TYPE_CHECKING:
    from rtp_llm._runtime import Drafts, Result
    from rtp_llm.config.speculative_settings import SpeculativeSettings
    from rtp_llm.worker.new_sequences import NewSequences
    from rtp_llm.worker.plan import StepPlan


class SuffixProposer:
    """The runtime's SuffixProposer, which sees the tokens of a step once it is committed."""

    needs_tokens = True

    def __init__(self, settings: SpeculativeSettings) -> None:
        """As vLLM's settings suffix_decoding_* say."""
        self.max_draft_tokens = settings.num_speculative_tokens
        self._native = load_runtime().SuffixProposer(
            num_tokens=settings.num_speculative_tokens,
            max_tree_depth=settings.suffix_decoding_max_tree_depth,
            max_cached_requests=settings.suffix_decoding_max_cached_requests,
            max_spec_factor=settings.suffix_decoding_max_spec_factor,
            min_token_prob=settings.suffix_decoding_min_token_prob,
        )

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
