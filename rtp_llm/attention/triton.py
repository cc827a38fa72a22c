"""The backend of NVIDIA GPUs: paged attention in Triton, split over the keys where rows are few."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.attention.backend import AttentionConfig
from rtp_llm.attention.paged import PagedAttentionBackend
from rtp_llm.device import Support

_LEAST_FOR_8_BITS = (8, 9)


class TritonAttentionBackend(PagedAttentionBackend):
    """One kernel for prefill, chunked prefill and decode in any mixture; waits for nothing."""

    name: ClassVar[str] = "triton"
    priority: ClassVar[int] = 10

    @classmethod
    def supports(cls, config: AttentionConfig) -> Support:
        if config.device_type != "cuda":
            return Support.no("its tiles were chosen and tested on NVIDIA GPUs only")
        if importlib.util.find_spec("triton") is None:
            return Support.no("the package triton is not installed")
        if config.dtype == torch.float32:
            return Support.no("float32 products do not run on tensor cores")
        if config.kv_dtype == torch.float8_e4m3fn:
            if config.capability < _LEAST_FOR_8_BITS:
                return Support.no(
                    "a KV cache of 8-bit floats (--kv-cache-dtype) needs compute capability 8.9"
                )
            config = replace(config, kv_dtype=config.dtype)
        return super().supports(config)

    def warm_up(self, kv_cache: Tensor) -> None:
        """Every tile of prompts and mixed batches, for each window, on a sequence without keys."""
        compile_prompt_tiles(self.config, self.scale, kv_cache)

    @classmethod
    def kernel(cls) -> Callable[..., Tensor]:
        return ops.triton_paged_attention


def compile_prompt_tiles(
    config: AttentionConfig, scale: float, kv_cache: Tensor, split_only: bool = False
) -> None:
    """Run the tiles of prompts on nothing, so that they are compiled; `split_only`: those of them
    that split the keys.
    """
    from rtp_llm.kernels.triton.attention.paged_attention import paged_attention, prompt_tiles

    heads, kv_heads, head = config.num_heads, config.num_kv_heads, config.head_dim
    device = kv_cache.device
    qkv = torch.zeros(2, (heads + 2 * kv_heads) * head, dtype=config.dtype, device=device)
    q = qkv[:, : heads * head].view(2, heads, head)
    cu_seqlens = torch.tensor([0, 2], dtype=torch.int32, device=device)
    nothing = torch.zeros(1, dtype=torch.int32, device=device)
    for window in set(config.windows):
        for tile in prompt_tiles(heads // kv_heads, head, config.dtype.itemsize):
            if tile.splits > 1 or not split_only:
                paged_attention(
                    q, kv_cache, cu_seqlens, nothing, nothing.view(1, 1), 2, 1, scale,
                    config.causal, window, config.soft_cap, tile=tile,
                )  # fmt: skip
