# SPDX-License-Identifier: Apache-2.0
"""FP8 products of libraries, through torch: cuBLASLt's of block-scaled FP8, for many rows where it
was quicker than our kernels (docs/fp8.md), and CUTLASS's with scales of rows."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from rtp_llm.ops.fp8.fp8_blocks import BLOCK

_LEAST_CUDA = (12, 9)
_ROW_UNIT = 4  # multiples of this many rows need no padding of scales
_ROW_BYTES = 16  # to which rows of both operands of a product with scales of rows are aligned
_BLOCK_UNIT = 4  # blocks of channels for which a weight's scales fit the library


@functools.cache
def _present() -> bool:
    version = torch.version.cuda
    return version is not None and tuple(map(int, version.split(".")[:2])) >= _LEAST_CUDA


def takes(x: Tensor, weight: Tensor) -> bool:
    """Whether the library multiplies x [M, K], quantised, by such a weight on their device."""
    if not (x.is_cuda and _present()) or x.dim() != 2 or weight.dim() != 2:
        return False
    rows, columns = x.shape
    return (
        rows > 0
        and rows % _ROW_UNIT == 0
        and columns % (BLOCK * _BLOCK_UNIT) == 0
        and weight.shape[0] % BLOCK == 0
    )


def product(q: Tensor, scales: Tensor, weight: Tensor, weight_scales: Tensor) -> Tensor:
    """As rtp_llm.ops.fp8_linear, for what `takes` says. RuntimeError on a mismatch."""
    return torch._scaled_mm(
        q, weight.T, scale_a=scales.T, scale_b=weight_scales.T, out_dtype=torch.bfloat16
    )


def takes_channels(x: Tensor, weight: Tensor) -> bool:
    """Whether the library multiplies x [M, K] by weight [N, K] with scales of their rows."""
    if not x.is_cuda or x.dim() != 2 or weight.dim() != 2:
        return False
    rows, columns = x.shape
    return rows > 0 and columns % _ROW_BYTES == 0 and weight.shape[0] % _ROW_BYTES == 0


def channel_product(q: Tensor, scales: Tensor, weight: Tensor, weight_scales: Tensor) -> Tensor:
    """As rtp_llm.ops.fp8_channel_linear, for what `takes_channels` says; on any device."""
    return torch._scaled_mm(
        q, weight.T, scale_a=scales, scale_b=weight_scales.T, out_dtype=torch.bfloat16
    )
