# SPDX-License-Identifier: Apache-2.0
"""Paged attention in Triton, split over the keys where rows are few."""

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
from rtp_llm.ops.triton import compile_tiles


class TritonAttentionBackend(PagedAttentionBackend):
    """One kernel for any mix of prefill, chunked prefill and decode; never waits."""

    name: ClassVar[str] = "triton"
    priority: ClassVar[int] = 10

    @classmethod
    def supports(cls, config: AttentionConfig) -> Support:
        if "triton" not in config.capabilities:
            return Support.no("its tiles were chosen and tested for other devices")
        if importlib.util.find_spec("triton") is None:
            return Support.no("the package triton is not installed")
        if config.dtype == torch.float32:
            return Support.no("float32 products do not run on tensor cores")
        if config.kv_dtype == torch.float8_e4m3fn:
            if "float8_conversion" not in config.capabilities:
                return Support.no(
                    "a KV cache of 8-bit floats (--kv-cache-dtype) needs FP8 conversion, which Ada "
                    "GPUs and newer have"
                )
            config = replace(config, kv_dtype=config.dtype)
        return super().supports(config)

    def warm_up(self, kv_cache: Tensor) -> None:
        """Compile every tile of prompts and mixed batches for each window, on an empty sequence."""
        has_scales = bool(self._scales)
        compile_prompt_tiles(self.config, self.scale, kv_cache, has_scales=has_scales)

    @classmethod
    def kernel(cls) -> Callable[..., Tensor]:
        return ops.triton_paged_attention


def compile_prompt_tiles(
    config: AttentionConfig,
    scale: float,
    kv_cache: Tensor,
    split_only: bool = False,
    has_scales: bool = False,
) -> None:
    """Compile the tiles of prompts; `split_only`: only the tiles that split the keys."""
    compile_tiles(
        "triton_paged_attention",
        kv_cache,
        config.dtype,
        config.num_heads,
        scale,
        causal=config.causal,
        windows=config.windows,
        soft_cap=config.soft_cap,
        has_sinks=config.sinks,
        has_scales=has_scales,
        split_only=split_only,
    )
