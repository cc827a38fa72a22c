# SPDX-License-Identifier: Apache-2.0
"""MLA in Triton."""

from __future__ import annotations

import importlib.util
from typing import ClassVar

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.attention.mla import MlaBackend, MlaConfig
from rtp_llm.attention.mla_step import LEAST_EXPANDED, ExpandedPart, MlaPart
from rtp_llm.device import Support


class TritonMlaBackend(MlaBackend):
    """One kernel over latents for any mix of steps, one over expanded heads; never waits."""

    name: ClassVar[str] = "triton"
    priority: ClassVar[int] = 10

    @classmethod
    def supports(cls, config: MlaConfig) -> Support:
        if "triton" not in config.capabilities:
            return Support.no("its tiles were chosen and tested for other devices")
        if importlib.util.find_spec("triton") is None:
            return Support.no("the package triton is not installed")
        if not ops.has_kernel("mla_rotate_and_store", config.capabilities.torch_type):
            return Support.no("the operator library has no mla_rotate_and_store for it")
        if config.indexer is not None:
            return Support.no("it attends to all tokens, and an indexer selects some")
        if config.kv_dtype != config.dtype:
            return Support.no(
                "latents are kept in the type of the activations: leave --kv-cache-dtype out"
            )
        return Support.yes()

    def attend_latents(self, q: Tensor, cache: Tensor, part: MlaPart) -> Tensor:
        return ops.triton_mla_attention(
            q,
            cache,
            part.cu_seqlens_q,
            part.seq_lens,
            part.block_table,
            self.config.latent_size,
            part.max_seqlen_q,
            part.max_seqlen_k,
            self.config.scale,
        )

    def attend_heads(self, q: Tensor, keys: Tensor, expanded: Tensor, part: ExpandedPart) -> Tensor:
        return ops.triton_expanded_attention(
            q,
            keys,
            expanded,
            part.cu_seqlens_q,
            part.seq_lens,
            part.starts,
            self.config.value_size,
            self.config.scale,
        )

    def warm_up(self, kv_cache: Tensor) -> None:
        """Both kernels for mixed batches, on a sequence without keys."""
        config = self.config
        device, heads = kv_cache.device, config.num_heads
        cu_seqlens = torch.tensor([0, 2], dtype=torch.int32, device=device)
        nothing = torch.zeros(1, dtype=torch.int32, device=device)
        part = MlaPart(None, cu_seqlens, nothing, nothing.view(1, 1), LEAST_EXPANDED, 1)
        cache = kv_cache.view(kv_cache.shape[1], kv_cache.shape[2], -1)
        wide = torch.zeros(2, heads, cache.shape[2], dtype=config.dtype, device=device)
        self.attend_latents(wide, cache, part)
        q = wide[..., : config.nope_size + config.rope_size].contiguous()
        rows = torch.zeros(1, cache.shape[2], dtype=config.dtype, device=device)
        expanded = rows.new_zeros(1, heads, config.nope_size + config.value_size)
        chosen = ExpandedPart(**vars(part), places=nothing.long(), starts=nothing)
        self.attend_heads(q, rows[:, config.latent_size :], expanded, chosen)
