# SPDX-License-Identifier: Apache-2.0
"""Root-mean-square and layer norms; sums and products are float32, whatever the element type."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import MutableTensor, operator


@operator
def rms_norm(x: Tensor, weight: Tensor, eps: float, norm_offset: float = 0.0) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * (weight + norm_offset) over the last dimension.

    x [..., C] of float32, bfloat16 or float16; a matrix may have a row stride, other ranks are
    contiguous. weight [C] of the same dtype. norm_offset is added in float32: 1 for checkpoints
    that hold w of 1 + w, as Gemma's and Qwen3-Next's do. Returns a contiguous tensor like x.
    RuntimeError on a mismatch.
    """
    return x.new_empty(x.shape)


@operator
def fused_add_rms_norm(
    x: MutableTensor,
    residual: MutableTensor,
    weight: Tensor,
    eps: float,
    norm_offset: float = 0.0,
) -> None:
    """In place: residual += x, rounded to its dtype; then x = rms_norm(residual, ...).

    x and residual [..., C] like x of rms_norm, of one shape and dtype and not overlapping.
    RuntimeError on a mismatch.
    """


@operator
def qk_rms_norm(
    qkv: MutableTensor,
    q_weight: Tensor,
    k_weight: Tensor,
    num_heads: int,
    num_kv_heads: int,
    eps: float,
    norm_offset: float = 0.0,
) -> None:
    """In place: replace each query and key head of the packed projection by its rms_norm.

    qkv [T, (H + 2 Hk) D] with a free row stride: query, key, then value heads. Weights [D].
    RuntimeError on a mismatch.
    """


@operator
def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """rms_norm(x, weight, eps) * silu(gate), all in float32: the norm of gated delta nets.

    x and gate [..., D] of one shape and dtype, like x of rms_norm; with three dimensions [T, H, D]
    the strides of tokens and heads are free. weight [D] of the same dtype. Returns a contiguous
    tensor. RuntimeError on a mismatch.
    """
    return x.new_empty(x.shape)


@operator
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """(x - mean(x)) / sqrt(var(x) + eps) * weight + bias over the last dimension.

    x [..., C] of float32, bfloat16 or float16; a matrix may have a row stride, other ranks are
    contiguous. weight and bias [C] of the same dtype. The variance is the biased one, summed from
    differences to the mean. Returns a contiguous tensor like x. RuntimeError on a mismatch.
    """
    return x.new_empty(x.shape)


@operator
def fused_add_layer_norm(
    x: MutableTensor,
    residual: MutableTensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
) -> None:
    """In place: residual += x, rounded to its dtype; then x = layer_norm(residual, ...).

    x and residual [..., C] like x of layer_norm, of one shape and dtype and not overlapping.
    RuntimeError on a mismatch.
    """
