# SPDX-License-Identifier: Apache-2.0
"""MLA on every device that has the operators."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.attention.indexer import INDEXER_OPERATORS
from rtp_llm.attention.mla import MlaBackend, MlaConfig, MlaWeights
from rtp_llm.attention.mla_step import EXPANDED_BLOCK, ExpandedPart, MlaPart
from rtp_llm.device import Support

_OPERATORS = ("mla_rotate_and_store", "mla_attention")


class PagedMlaBackend(MlaBackend):
    """`mla_attention` for latents; `paged_attention` over keys and values that were expanded."""

    name: ClassVar[str] = "paged"
    priority: ClassVar[int] = 0

    def __init__(self, config: MlaConfig) -> None:
        super().__init__(config)
        self.wants_keys = "head_products" in config.capabilities

    @classmethod
    def supports(cls, config: MlaConfig) -> Support:
        if config.kv_dtype != config.dtype:
            return Support.no(
                "latents are kept in the type of the activations: leave --kv-cache-dtype out"
            )
        needed = _OPERATORS if config.indexer is None else _OPERATORS + INDEXER_OPERATORS
        missing = [
            name for name in needed if not ops.has_kernel(name, config.capabilities.torch_type)
        ]
        if missing:
            return Support.no(f"the operator library has no {', '.join(missing)} for it")
        return Support.yes()

    # torch's products round differently for few tokens than for many; `linear` does not.

    def absorb_queries(self, q: Tensor, weights: MlaWeights, out: Tensor) -> None:
        if weights.keys is None:
            return super().absorb_queries(q, weights, out)
        out.copy_(ops.linear(q, weights.keys))

    def values_of(self, sums: Tensor, weights: MlaWeights) -> Tensor:
        if weights.keys is None:
            return super().values_of(sums, weights)
        return ops.linear(sums, weights.kv_b[:, self.config.nope_size :])

    def attend_latents(self, q: Tensor, cache: Tensor, part: MlaPart) -> Tensor:
        return ops.mla_attention(
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
        # Treated as a separate cache with blocks in order; the shorter of key and value is padded.
        config = self.config
        nope, values = config.nope_size, config.value_size
        size = max(q.shape[2], values)
        cache = q.new_zeros(2, *expanded.shape[:2], size)
        cache[0, ..., :nope] = expanded[..., :nope]
        cache[0, ..., nope : q.shape[2]] = keys[:, None]
        cache[1, ..., :values] = expanded[..., nope:]
        blocks = cache.view(2, -1, EXPANDED_BLOCK, *cache.shape[2:])
        wide = torch.nn.functional.pad(q, (0, size - q.shape[2]))
        out = ops.paged_attention(
            wide,
            blocks,
            part.cu_seqlens_q,
            part.seq_lens,
            part.table,
            part.max_seqlen_q,
            part.max_seqlen_k,
            config.scale,
        )
        return out[..., :values]
