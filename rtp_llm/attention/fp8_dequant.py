# SPDX-License-Identifier: Apache-2.0
"""Prompts over an FP8 KV cache on Hopper GPUs: pages are first converted to 16 bits.

The fastest prompt kernel multiplies keys and values as they are stored in the cache, so they must
have the dtype of the queries. Widening the pages that a step sees costs a few bytes per key, once;
the savings grow with the number of queries that see the key.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.attention.backend import AttentionBackend, AttentionConfig, PartialBackend
from rtp_llm.attention.batch import ForwardBatch, HostNumbers
from rtp_llm.attention.cuda_sm90 import CudaSm90Backend
from rtp_llm.attention.pages import list_pages, pinned
from rtp_llm.attention.rotation import Rotation
from rtp_llm.device import Support

# Shared by all layers, which run in sequence: 128k tokens of 8 KV heads of 128.
_SCRATCH_BYTES = 512 * 2**20
# Query rows for each key (a query head that shares it counts) from which widening is worth it.
_ROWS_WORTH_IT = 256


@dataclass(frozen=True)
class _Plan:
    """`pages` int32 [2 P] lists the pages to dequantise, keys then values, numbered over both
    planes; `table` int32 [B, M] is the block table of the result.
    """

    pages: Tensor
    table: Tensor


class Fp8DequantBackend(PartialBackend):
    """Steps with enough queries per key and with lengths that are known to the host."""

    name: ClassVar[str] = "fp8_dequant"
    priority: ClassVar[int] = 15

    @classmethod
    def supports(cls, config: AttentionConfig) -> Support:
        if config.kv_dtype != torch.float8_e4m3fn:
            return Support.no("the KV cache has the type of the queries, there is nothing to widen")
        if importlib.util.find_spec("triton") is None:
            return Support.no("the package triton is not installed")
        if not config.causal:
            return Support.no("it widens the pages that causal attention reads")
        return CudaSm90Backend.supports(replace(config, kv_dtype=config.dtype))

    @classmethod
    def kernel(cls) -> Callable[[Tensor, Tensor, Tensor], None]:
        """The kernel to use, with the signature of rtp_llm.ops.widen_pages."""
        return ops.widen_pages

    def __init__(self, config: AttentionConfig, others: AttentionBackend) -> None:
        super().__init__(config, others)
        self._widen_pages = self.kernel()
        self._page = config.block_size * config.num_kv_heads * config.head_dim  # of one plane
        self._max_pages = _SCRATCH_BYTES // (2 * self._page * config.dtype.itemsize)
        self._scratch: Tensor | None = None
        self._step: ForwardBatch | None = None
        self._plans: dict[int, _Plan | None] = {}

    def attend(
        self,
        qkv: Tensor,
        layer: int,
        window: int,
        batch: ForwardBatch,
        rotation: Rotation,
        sinks: Tensor | None = None,
    ) -> Tensor:
        if self._plan(qkv.device, layer, window, batch) is None:
            return self.others.attend(qkv, layer, window, batch, rotation, sinks)
        return super().attend(qkv, layer, window, batch, rotation, sinks)

    def forward(
        self,
        q: Tensor,
        layer: int,
        window: int,
        batch: ForwardBatch,
        sinks: Tensor | None = None,
    ) -> Tensor:
        plan = self._plan(q.device, layer, window, batch)
        if plan is None:
            return self.others.forward(q, layer, window, batch, sinks)
        scales = self._scales.get(layer)
        mixed = ops.paged_attention(
            q,
            self._widen(batch.kv_cache[layer], plan.pages),
            batch.cu_seqlens_q,
            batch.seq_lens,
            plan.table,
            batch.max_seqlen_q,
            batch.max_seqlen_k,
            self.scale * scales.key if scales else self.scale,
            window=window,
            soft_cap=self.config.soft_cap,
            sinks=sinks,
        )
        return mixed.mul_(scales.values) if scales else mixed

    def _plan(
        self, device: torch.device, layer: int, window: int, batch: ForwardBatch
    ) -> _Plan | None:
        """The plan of the step for the layer's cache group; None if another backend is faster."""
        if batch.host is None or not batch.host.exact:
            return None
        if self._step is not batch:
            self._step, self._plans = batch, {}
        group = batch.layer_group[layer]
        if group not in self._plans:
            blocks = batch.kv_cache[layer].shape[1]
            self._plans[group] = self._make_plan(device, batch.host, group, window, blocks)
        return self._plans[group]

    def _make_plan(
        self, device: torch.device, host: HostNumbers, group: int, window: int, blocks: int
    ) -> _Plan | None:
        config = self.config
        pages = list_pages(host, group, config.block_size, window)
        count = len(pages.blocks)
        new = np.diff(host.cu_seqlens_q).astype(np.int64)
        seen = host.seq_lens - (new - 1) / 2  # keys of a sequence's query in the middle
        if window:
            seen = np.minimum(seen, window)
        rows = float(new @ seen) * config.num_heads / config.num_kv_heads
        if count > self._max_pages or rows < _ROWS_WORTH_IT * count * config.block_size:
            return None
        width = int(np.max(pages.first + np.diff(pages.ends)))
        columns = np.arange(width, dtype=np.int32)
        # Never read: columns outside of a sequence's pages.
        table = np.clip((pages.ends[:-1] - pages.first)[:, None] + columns, 0, count - 1)
        both = np.concatenate([pages.blocks, pages.blocks + np.int32(blocks)])
        numbers = pinned((both, table.astype(np.int32).reshape(-1)))
        there, places = (part.to(device, non_blocking=True) for part in numbers)
        return _Plan(there, places.view(len(new), width))

    def _widen(self, cache: Tensor, pages: Tensor) -> Tensor:
        """The `pages` of `cache` [2, N, S, Hk, D] -> [2, P, S, Hk, D] in the queries' dtype."""
        if self._scratch is None:
            shape = 2 * self._max_pages, self._page
            self._scratch = torch.empty(shape, dtype=self.config.dtype, device=cache.device)
        wide = self._scratch[: len(pages)]
        self._widen_pages(cache.view(-1, self._page), pages, wide)
        return wide.view(2, len(pages) // 2, *cache.shape[2:])
