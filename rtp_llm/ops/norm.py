"""Root-mean-square norms; sums and products are float32, whatever the element type."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.registry import operator

_RMS_NORM = operator("rms_norm")
_FUSED_ADD_RMS_NORM = operator("fused_add_rms_norm")
_QK_RMS_NORM = operator("qk_rms_norm")


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension.

    x [..., C] of any float dtype, contiguous (a matrix may have a row stride); weight [C] of the
    same dtype. Returns a contiguous tensor of x's shape and dtype. RuntimeError on a mismatch.
    """
    return _RMS_NORM.call(x, weight, eps)  # type: ignore[no-any-return]
