# SPDX-License-Identifier: Apache-2.0
"""Random steps for the fused operators: configurations, block tables, caches, inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rtp_llm import compat

MAX_TOKENS = 128
BLOCKS = 80  # physical ones of a cache


def configs(
    rope: compat.RopeSettings,
    heads: tuple[int, int, int] = (4, 2, 64),
    blocks: tuple[int, int] = (16, 16),
    planes: bool = True,
    **changes: Any,
) -> compat.AttentionConfigs:
    """heads: query, KV heads, head size; blocks: tokens of a physical and of a kernel block."""
    return compat.AttentionConfigs(
        *heads,
        tokens_per_block=blocks[0],
        max_seq_len=MAX_TOKENS,
        rope_config=rope,
        kernel_tokens_per_block=blocks[1],
        num_kernel_blocks=BLOCKS * (blocks[0] // blocks[1]) if planes else None,
        **changes,
    )


@dataclass
class Step:
    """Requests over one cache of BLOCKS physical blocks, which kernel tables are made of."""

    config: compat.AttentionConfigs
    dtype: torch.dtype
    cache: compat.LayerKVCache
    physical: Tensor  # [B, blocks]

    @staticmethod
    def random(config: compat.AttentionConfigs, requests: int, dtype: torch.dtype) -> Step:
        ratio = config.tokens_per_block // config.kernel_block
        width = MAX_TOKENS // config.tokens_per_block
        physical = (torch.randperm(BLOCKS - 1) + 1)[: requests * width].reshape(requests, width)
        hk, d = config.kv_head_num, config.size_per_head
        fp8 = config.kv_cache_dtype == compat.KvCacheDataType.FP8
        shape = (2, BLOCKS, config.tokens_per_block, hk, d)
        if config.num_kernel_blocks is None:
            shape = (BLOCKS * ratio, 2, hk, config.kernel_block, d)
        cache = torch.zeros(shape).to(config.fp8_dtype if fp8 else dtype)
        scales = torch.zeros(shape[:-1]) if fp8 else None
        return Step(config, dtype, compat.LayerKVCache(cache, scales), physical)

    def table(self) -> Tensor:
        """Kernel blocks: physical p is p * ratio ... p * ratio + ratio - 1."""
        ratio = self.config.tokens_per_block // self.config.kernel_block
        kernel = self.physical[..., None] * ratio + torch.arange(ratio)
        return kernel.flatten(1).int()

    def qkv(self, tokens: int) -> Tensor:
        heads = self.config.head_num + 2 * self.config.kv_head_num
        return torch.randn(tokens, heads * self.config.size_per_head).to(self.dtype)

    def prefill(
        self, new: Sequence[int], past: Sequence[int], **changes: Any
    ) -> compat.PyAttentionInputs:
        lengths = torch.tensor(new, dtype=torch.int32)
        prefix = torch.tensor(past, dtype=torch.int32)
        given: dict[str, Any] = {
            "input_lengths": lengths.cpu(),
            "prefix_lengths": prefix.cpu(),
            "input_lengths_device": lengths,
            "prefix_lengths_device": prefix,
            "kv_cache_kernel_block_id_device": self.table(),
            "dtype": self.dtype,
        }
        return compat.PyAttentionInputs(is_prefill=True, **given | changes)

    def decode(self, past: Sequence[int], **changes: Any) -> compat.PyAttentionInputs:
        lengths = torch.tensor(past, dtype=torch.int32)
        ones = torch.ones_like(lengths)
        given: dict[str, Any] = {
            "input_lengths": ones.cpu(),
            "input_lengths_device": ones,
            "sequence_lengths": lengths.cpu(),
            "sequence_lengths_device": lengths,
            "kv_cache_kernel_block_id_device": self.table(),
            "dtype": self.dtype,
        }
        return compat.PyAttentionInputs(is_prefill=False, **given | changes)

    def stored(self, request: int, tokens: int) -> Tensor:
        """[2, tokens, Hk, D]: keys and values of a request, read from the physical blocks."""
        base, config = self.cache.kv_cache_base, self.config
        if config.num_kernel_blocks is None:
            ratio = config.tokens_per_block // config.kernel_block
            kernel = self.physical[request, :, None] * ratio + torch.arange(ratio)
            rows = base[kernel.flatten()].permute(1, 0, 3, 2, 4)
        else:
            rows = base[:, self.physical[request]]
        return rows.flatten(1, 2)[:, :tokens]
