# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch reference of norms with a block-scaled FP8 result."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.fp8.fp8_activation_reference import fp8_quantize_reference
from rtp_llm.ops.norm.norm_reference import rms_norm_reference


def norm_fp8_reference(
    residual: Tensor,
    pending: Tensor | None,
    weight: Tensor,
    eps: float,
    norm_offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Plain PyTorch reference of `ops.norm_fp8`: same arguments and results."""
    if pending is not None:
        residual.copy_((residual.float() + pending.float()).to(residual.dtype))
    return fp8_quantize_reference(rms_norm_reference(residual.float(), weight, eps, norm_offset))
