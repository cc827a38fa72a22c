"""The proposer that settings ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtp_llm.worker.speculative.device_proposer import DeviceProposer
from rtp_llm.worker.speculative.draft_length import DraftLength
from rtp_llm.worker.speculative.ngram import NgramProposer
from rtp_llm.worker.speculative.proposer import NO_DRAFTS, Proposer
from rtp_llm.worker.speculative.suffix import SuffixProposer

if TYPE_CHECKING:
    from rtp_llm.config.speculative_settings import SpeculativeSettings


def make_proposer(settings: SpeculativeSettings) -> Proposer:
    """For one engine; it sees all of its sequences."""
    if settings.speculative == "ngram":
        return NgramProposer(
            settings.prompt_lookup_min,
            settings.prompt_lookup_max,
            settings.num_speculative_tokens,
        )
    if settings.speculative == "suffix":
        return SuffixProposer(settings)
    if settings.drafts_on_device:
        return DeviceProposer(settings.num_speculative_tokens)
    return NO_DRAFTS


def make_draft_length(settings: SpeculativeSettings, proposer: Proposer) -> DraftLength:
    """How many of the proposer's drafts a step takes, by the load."""
    return DraftLength(
        proposer.max_draft_tokens, settings.draft_table, adaptive=settings.speculative_adaptive
    )
