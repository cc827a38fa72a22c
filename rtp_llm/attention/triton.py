"""The backend of NVIDIA GPUs: paged attention in Triton, split over the keys where rows are few."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from rtp_llm.attention.backend import AttentionConfig
from rtp_llm.attention.paged import PagedAttentionBackend
from rtp_llm.device import Support


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
        return super().supports(config)

    @classmethod
    def kernel(cls) -> Callable[..., Tensor]:
        from rtp_llm.kernels.triton.paged_attention import paged_attention

        return paged_attention
