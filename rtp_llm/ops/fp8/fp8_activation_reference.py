"""Plain PyTorch references and Meta functions of activations as block-scaled FP8."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.fp8.fp8_blocks import E4M3, column_major, num_blocks, quantize_rows, scale_rows


def fp8_quantize_reference(x: Tensor, masked_m: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """See rtp_llm.ops.fp8_quantize."""
    q, scales = quantize_rows(x)
    return q, column_major(scales)


def fp8_quantize_meta(x: Tensor, masked_m: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Shapes and dtypes of fp8_quantize."""
    *outer, rows, columns = x.shape
    scales = x.new_empty((*outer, num_blocks(columns), scale_rows(rows)), dtype=torch.float32)
    return x.new_empty(x.shape, dtype=E4M3), scales


def silu_and_mul_fp8_reference(x: Tensor, masked_m: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """See rtp_llm.ops.silu_and_mul_fp8."""
    gate, factor = x.float().chunk(2, dim=-1)
    return fp8_quantize_reference(torch.nn.functional.silu(gate) * factor)


def silu_and_mul_fp8_meta(x: Tensor, masked_m: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Shapes and dtypes of silu_and_mul_fp8."""
    return fp8_quantize_meta(x[..., : x.shape[-1] // 2])
