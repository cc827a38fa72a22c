"""The proposer that settings ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtp_llm.worker.speculative.device_proposer import DeviceProposer
from rtp_llm.worker.speculative.draft_length import DraftLength
from rtp_llm.worker.speculative.native_proposer import ngram_proposer, suffix_proposer
from rtp_llm.worker.speculative.proposer import NO_DRAFTS, Proposer

if TYPE_CHECKING:
    from rtp_llm.config.speculative_settings import SpeculativeSettings


def make_proposer(settings: SpeculativeSettings) -> Proposer:
    """For one engine; it sees all of its sequences."""
    if settings.speculative == "ngram":
        return ngram_proposer(settings)
    if settings.speculative == "suffix":
        return suffix_proposer(settings)
    if settings.drafts_on_device:
        return DeviceProposer(settings.num_speculative_tokens)
    return NO_DRAFTS


def make_draft_length(settings: SpeculativeSettings, proposer: Proposer) -> DraftLength:
    """How many of the proposer's drafts a step takes, by the load."""
    return DraftLength(
        proposer.max_draft_tokens, settings.draft_table, adaptive=settings.speculative_adaptive
    )
