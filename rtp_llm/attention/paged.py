# SPDX-License-Identifier: Apache-2.0
"""The backend that every device has: this project's own paged attention operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.attention.backend import AttentionBackend, AttentionConfig
from rtp_llm.attention.batch import ForwardBatch
from rtp_llm.device import Support

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class PagedAttentionBackend(AttentionBackend):
    """One call of `paged_attention` for any mix of prefill, chunked prefill and decode."""

    name: ClassVar[str] = "paged"
    priority: ClassVar[int] = 0

    @classmethod
    def supports(cls, config: AttentionConfig) -> Support:
        if config.dtype not in _DTYPES:
            return Support.no(f"the operator has no kernel for {config.dtype}")
        if config.kv_dtype != config.dtype:
            return Support.no(f"the KV cache must have the type of the queries, {config.dtype}")
        max_head_dim = config.capabilities.max_head_dim
        if max_head_dim is not None and config.head_dim > max_head_dim:
            return Support.no(
                f"the kernel for {config.capabilities} takes heads of at most {max_head_dim}"
            )
        return Support.yes()

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self._attend = self.kernel()

    @classmethod
    def kernel(cls) -> Callable[..., Tensor]:
        """The kernel to use, with the signature of rtp_llm.ops.paged_attention."""
        return ops.paged_attention

    def forward(
        self,
        q: Tensor,
        layer: int,
        window: int,
        batch: ForwardBatch,
        sinks: Tensor | None = None,
    ) -> Tensor:
        return self._call(self._attend, q, layer, window, batch, sinks)

    def _call(
        self,
        attend: Callable[..., Tensor],
        q: Tensor,
        layer: int,
        window: int,
        batch: ForwardBatch,
        sinks: Tensor | None,
    ) -> Tensor:
        options: dict[str, Tensor] = {}
        if scales := self._scales.get(layer):  # backends of caches in 8 bits take them
            options = {"k_scale": scales.keys, "v_scale": scales.values}
        return attend(
            q,
            batch.kv_cache[layer],
            batch.cu_seqlens_q,
            batch.seq_lens,
            batch.block_table[batch.layer_group[layer]],
            batch.max_seqlen_q,
            batch.max_seqlen_k,
            self.scale,
            causal=self.config.causal,
            window=window,
            soft_cap=self.config.soft_cap,
            sinks=sinks,
            **options,
        )
