# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch references of activations as block-scaled FP8."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.fp8.fp8_blocks import column_major, quantize_rows


def fp8_quantize_reference(x: Tensor, masked_m: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Plain PyTorch reference of `ops.fp8_quantize`: same arguments and results."""
    q, scales = quantize_rows(x)
    return q, column_major(scales)


def silu_and_mul_fp8_reference(x: Tensor, masked_m: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Plain PyTorch reference of `ops.silu_and_mul_fp8`: same arguments and results."""
    gate, factor = x.float().chunk(2, dim=-1)
    return fp8_quantize_reference(torch.nn.functional.silu(gate) * factor)
