# SPDX-License-Identifier: Apache-2.0
"""Drafts that the runtime finds in tokens that are known: by n-grams, or in suffix trees."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rtp_llm.native import load_runtime

if TYPE_CHECKING:
    from rtp_llm._runtime import Drafts, NgramProposer, Result, SuffixProposer
    from rtp_llm.config.speculative_settings import SpeculativeSettings
    from rtp_llm.worker.forked_sequences import ForkedSequences
    from rtp_llm.worker.new_sequences import NewSequences
    from rtp_llm.worker.plan.step_plan import StepPlan


class NativeProposer:
    """A proposer of the runtime, which sees the tokens of a step once it is committed."""

    needs_tokens = True
    constrained_only = False

    def __init__(self, native: NgramProposer | SuffixProposer, max_draft_tokens: int) -> None:
        self.native, self.max_draft_tokens = native, max_draft_tokens

    def add(self, sequences: NewSequences) -> None:
        if sequences.sampling.speculate:
            self.native.add(sequences.ids, sequences.prompt)

    def fork(self, forked: ForkedSequences) -> None:
        for each, tokens in zip(forked.ids, forked.histories, strict=True):
            self.native.fork(forked.source, each, tokens)

    def end(self, ids: Iterable[int]) -> None:
        self.native.end(list(ids))

    def propose(self, in_flight: StepPlan | None) -> Drafts | None:
        return self.native.propose()

    def observe(self, result: Result) -> None:
        self.native.observe(result)

    def receive(self, sequence: int, token: int, *, ended: bool) -> None:
        self.native.receive(sequence, token, ended=ended)


class _SuffixProposer(NativeProposer):
    """Also looks at the outputs of other sequences, of the same part of the prefix cache."""

    native: SuffixProposer

    def add(self, sequences: NewSequences) -> None:
        if sequences.sampling.speculate:
            # Clients may choose keys of any length.
            scope = hashlib.blake2b(sequences.extra_key.encode(), digest_size=16).digest()
            self.native.add(sequences.ids, sequences.prompt, scope)


def ngram_proposer(settings: SpeculativeSettings) -> NativeProposer:
    """Drafts from what a sequence has said, or was asked, before: prompt lookup decoding."""
    native = load_runtime().NgramProposer(
        min_n=settings.prompt_lookup_min,
        max_n=settings.prompt_lookup_max,
        num_tokens=settings.num_speculative_tokens,
    )
    return NativeProposer(native, settings.num_speculative_tokens)


def suffix_proposer(settings: SpeculativeSettings) -> NativeProposer:
    """Drafts from what sequences have said before, by how often: SuffixDecoding."""
    native = load_runtime().SuffixProposer(
        num_tokens=settings.num_speculative_tokens,
        max_tree_depth=settings.suffix_decoding_max_tree_depth,
        max_cached_requests=settings.suffix_decoding_max_cached_requests,
        max_spec_factor=settings.suffix_decoding_max_spec_factor,
        min_token_prob=settings.suffix_decoding_min_token_prob,
    )
    return _SuffixProposer(native, settings.num_speculative_tokens)
