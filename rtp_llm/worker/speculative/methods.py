# SPDX-License-Identifier: Apache-2.0
"""What settings ask for: who proposes drafts, who finds them, and how many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtp_llm import ops
from rtp_llm.worker.speculative.device_proposer import DeviceProposer
from rtp_llm.worker.speculative.draft_length import DraftLength
from rtp_llm.worker.speculative.draft_sampling import DraftSampling, draft_logits_bytes
from rtp_llm.worker.speculative.drafter import Drafter
from rtp_llm.worker.speculative.grammar_proposer import GrammarProposer
from rtp_llm.worker.speculative.model_drafter import ModelDrafter
from rtp_llm.worker.speculative.native_proposer import ngram_proposer, suffix_proposer
from rtp_llm.worker.speculative.ngram_drafter import NgramDrafter
from rtp_llm.worker.speculative.proposer import NO_DRAFTS, Proposer
from rtp_llm.worker.speculative.token_histories import TokenHistories, history_bytes

if TYPE_CHECKING:
    import torch

    from rtp_llm.config.settings import Settings
    from rtp_llm.config.speculative_settings import SpeculativeSettings
    from rtp_llm.device import Device
    from rtp_llm.worker.model_runner import ModelRunner
    from rtp_llm.worker.sampled_tokens import SampledTokens
    from rtp_llm.worker.speculative.device_drafter import DeviceDrafter
    from rtp_llm.worker.warm_up import StepLimits


def matches_on_device(settings: Settings, device: Device) -> bool:
    """Whether n-grams are looked up on the device, while the host goes on, or by the host.

    The host knows which sequences have no draft, and computes none for them: where steps do not
    overlap anyway, that is better.
    """
    overlaps = device.asynchronous and settings.enable_overlap is not False
    return overlaps and ops.has_kernel("match_ngrams", device.torch_device.type)


def drafts_on_device(settings: Settings, device: Device) -> bool:
    """The device finds drafts, so that the host need not know the tokens before them."""
    return settings.has_draft_head or (
        settings.speculative == "ngram" and matches_on_device(settings, device)
    )


def make_proposer(settings: Settings, device: Device) -> Proposer:
    """For one engine; it sees all of its sequences."""
    if drafts_on_device(settings, device):
        return DeviceProposer(settings.num_speculative_tokens)
    if settings.speculative == "ngram":
        return ngram_proposer(settings)
    if settings.speculative == "suffix":
        return suffix_proposer(settings)
    if settings.speculative == "grammar":
        return GrammarProposer(settings.num_speculative_tokens)
    return NO_DRAFTS


def make_drafter(
    settings: Settings,
    runner: ModelRunner,
    sampled: SampledTokens,
    num_slots: int,
    max_model_len: int,
    dtype: torch.dtype,
) -> DeviceDrafter:
    """Where drafts_on_device; ``dtype`` of hidden states."""
    most = settings.num_speculative_tokens
    sampling = _make_sampling(settings, runner, sampled, num_slots)
    if settings.speculative == "draft-model":
        return ModelDrafter(runner, sampled, num_slots, most, sampling)
    if settings.has_draft_head:
        return Drafter(runner, sampled, num_slots, most, dtype, sampling)
    device = runner.device
    histories = TokenHistories(settings.max_running_requests, max_model_len, num_slots, device)
    shortest, longest = settings.prompt_lookup_min, settings.prompt_lookup_max
    return NgramDrafter(histories, sampled, device, min_n=shortest, max_n=longest)


def _make_sampling(
    settings: SpeculativeSettings, runner: ModelRunner, sampled: SampledTokens, num_slots: int
) -> DraftSampling | None:
    head, config = runner.model.drafts, runner.model.config
    if head is None or not settings.samples_drafts:
        return None
    vocab_sizes, rows = (config.draft_vocab_size, config.vocab_size), len(sampled.drafts)
    return DraftSampling(head, vocab_sizes, num_slots, rows, runner.device)


def drafter_bytes(
    settings: Settings, device: Device, limits: StepLimits, draft_vocab_size: int = 0
) -> int:
    """Bytes of device memory that a drafter takes in addition to weights and KV cache. Most of it
    depends on ``draft_vocab_size``, where drafts are sampled."""
    if settings.samples_drafts:
        rows = limits.max_running * (1 + settings.num_speculative_tokens)
        return draft_logits_bytes(rows, draft_vocab_size)
    if settings.has_draft_head or not drafts_on_device(settings, device):
        return 0
    return history_bytes(limits.max_running, limits.max_model_len)


def make_draft_length(settings: SpeculativeSettings, proposer: Proposer) -> DraftLength:
    """How many of the proposer's drafts a step takes, by the load."""
    return DraftLength(
        proposer.max_draft_tokens, settings.draft_table, adaptive=settings.speculative_adaptive
    )
