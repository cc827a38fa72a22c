"""Root-mean-square norms; sums and products are float32, whatever the element type."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.registry import operator

_RMS_NORM = operator("rms_norm")
_FUSED_ADD_RMS_NORM = operator("fused_add_rms_norm")
_QK_RMS_NORM = operator("qk_rms_norm")


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension.

    x [..., C] of float32, bfloat16 or float16; a matrix may have a row stride, other ranks are
    contiguous. weight [C] of the same dtype. Returns a contiguous tensor like x.
    RuntimeError on a mismatch.
    """
    return _RMS_NORM.call(x, weight, eps)  # type: ignore[no-any-return]


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    """In place: residual += x, rounded to its dtype; then x = rms_norm(residual, weight, eps).

    x and residual [..., C] as x of rms_norm, of one shape and dtype, in different memory.
    """
    _FUSED_ADD_RMS_NORM.call(x, residual, weight, eps)


def qk_rms_norm(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    num_heads: int,
    num_kv_heads: int,
    eps: float,
) -> None:
    """In place: each query and key head of the packed projection is replaced by its rms_norm.

    qkv [T, (H + 2 Hk) D] with a free row stride: query, key, then value heads. Weights [D].
    """
    _QK_RMS_NORM.call(qkv, q_weight, k_weight, num_heads, num_kv_heads, eps)
