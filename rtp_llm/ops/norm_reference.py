"""Plain PyTorch references and Meta functions of the norms."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See rtp_llm.ops.rms_norm."""
    wide = x.float()
    inverse = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * inverse * weight.float()).to(x.dtype)


def rms_norm_meta(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Shape and dtype of rms_norm."""
    return x.new_empty(x.shape)
