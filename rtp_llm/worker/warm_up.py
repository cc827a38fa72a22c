# SPDX-License-Identifier: Apache-2.0
"""The largest steps that requests can bring, run once to see what memory they take."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.attention.batch import ForwardBatch, HostNumbers
from rtp_llm.attention.cache_spec import CacheGroups
from rtp_llm.worker.cache.kv_cache import KVCache
from rtp_llm.worker.cache.plan import CacheShape
from rtp_llm.worker.inputs.step_inputs import padding

if TYPE_CHECKING:
    from rtp_llm.device import Device
    from rtp_llm.models.causal_lm import CausalLM


@dataclass(frozen=True)
class StepLimits:
    """The most that a step can have, and the longest sequence; all in tokens but `max_running`.

    ``max_draft_tokens`` are those of one sequence.
    """

    max_batch_tokens: int
    max_running: int
    max_model_len: int
    block_size: int
    max_draft_tokens: int = 0

    def cache_shape(self, groups: CacheGroups) -> CacheShape:
        """What blocks of a model's cache cost, and what these steps need of them."""
        return CacheShape(groups.groups, self.block_size, self.max_running, self.max_batch_tokens)

    @property
    def max_rows(self) -> int:
        """Rows of logits that a step can have."""
        return self.max_running * (1 + self.max_draft_tokens)

    @property
    def max_prompt_tokens(self) -> int:
        """Tokens of prompts that a step can have."""
        return min(self.max_batch_tokens, self.max_running * self.max_model_len)

    @property
    def max_decoding(self) -> int:
        """Sequences that can decode in one step."""
        return min(self.max_running, self.max_batch_tokens)


@dataclass(frozen=True)
class StepPeaks:
    """Bytes that the largest steps took in addition to weights and cache."""

    prompt: int
    decode: int


def measure_steps(model: CausalLM, device: Device, limits: StepLimits) -> StepPeaks:
    """Run a step of prompts as long as they can be, and one in which all sequences decode.

    Both end in logits and a sampled token for each sequence and draft. All keys and values go to
    one block, which is the whole cache and is given back. What only a longer context takes is
    added: it is not tried. Ranks that compute one model do this at the same time.

    Raises:
        torch.OutOfMemoryError: one of them does not fit.
    """
    steps = _LargestSteps(model, device, limits)
    tokens, longest = limits.max_batch_tokens, limits.max_model_len
    prompts = [min(longest, tokens - start) for start in range(0, tokens, longest)]
    # A step has at most so many sequences, prompts too.
    prompts = prompts[: limits.max_running]
    with torch.inference_mode():
        return StepPeaks(
            prompt=steps.peak(prompts) + _longer_context(model, limits, sum(prompts)),
            decode=steps.peak([1] * limits.max_decoding),
        )


def _longer_context(model: CausalLM, limits: StepLimits, tried: int) -> int:
    """Bytes that steps take for the longest contexts beyond what they took for ``tried`` keys."""
    most = max(tried, limits.max_running * limits.max_model_len)
    return model.context_bytes(most) - model.context_bytes(tried)


class _LargestSteps:
    def __init__(self, model: CausalLM, device: Device, limits: StepLimits) -> None:
        groups = model.cache_groups()
        one_each = (1,) * len(groups.groups)
        self._cache = KVCache(groups, one_each, limits.block_size, device.torch_device)
        self._model, self._device, self._limits = model, device, limits

    def peak(self, lengths: list[int]) -> int:
        """Bytes that a step with ``lengths`` new tokens for each sequence takes at most."""
        self._device.synchronize()
        self._device.empty_cache()
        self._device.reset_peak_memory()
        before = self._device.memory_used()
        batch = self._batch(lengths)
        hidden = self._model(batch)
        if self._model.drafts is not None:
            self._model.draft(batch, self._model.draft_states(hidden))
        if self._model.has_logits:
            rows = min(len(hidden), self._limits.max_rows)
            logits = self._model.compute_logits(hidden[:rows])
            self._draw(self._model.gather_logits(logits))
        self._device.synchronize()
        return max(0, self._device.peak_memory() - before)

    def _batch(self, lengths: list[int]) -> ForwardBatch:
        limits, cache, place = self._limits, self._cache, self._device.torch_device
        seq_lens = torch.tensor(lengths, dtype=torch.int32)
        positions = torch.cat([torch.arange(length, dtype=torch.int32) for length in lengths])
        table = torch.zeros(
            len(lengths), -(-limits.max_model_len // limits.block_size), dtype=torch.int32
        )
        cu_seqlens_q = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        groups = len(cache.groups)
        return ForwardBatch(
            token_ids=torch.zeros_like(positions).to(place),
            positions=positions.to(place),
            slot_mapping=((positions % limits.block_size).to(place),) * groups,
            block_table=(table.to(place),) * groups,
            cu_seqlens_q=cu_seqlens_q.to(place),
            seq_lens=seq_lens.to(place),
            max_seqlen_q=max(lengths),
            max_seqlen_k=limits.max_model_len,
            kv_cache=cache.layers,
            layer_group=cache.layer_group,
            states=cache.states,
            state_read=(torch.full_like(seq_lens, -1).to(place),) * groups,
            state_write=(torch.zeros_like(seq_lens).to(place),) * groups,
            host=HostNumbers(cu_seqlens_q.numpy(), seq_lens.numpy(), (table.numpy(),) * groups),
            hidden=self._model.stage_input(sum(lengths)),
            **padding(self._model.inputs.needs, sum(lengths), len(lengths), place),
        )

    @staticmethod
    def _draw(logits: Tensor) -> None:
        rows, place = len(logits), logits.device
        ops.sample(
            logits,
            torch.ones(rows, device=place),
            torch.zeros(rows, dtype=torch.int32, device=place),
            torch.full((rows,), 0.9, device=place),
            torch.zeros(rows, device=place),
            torch.zeros(rows, dtype=torch.int64, device=place),
            torch.zeros(rows, dtype=torch.int64, device=place),
        )
