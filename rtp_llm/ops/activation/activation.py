"""Gated activations of the feed-forward layer; float32 maths, whatever the element type."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.registry import operator

_SILU_AND_MUL = operator("silu_and_mul")
_GELU_AND_MUL = operator("gelu_and_mul")


def silu_and_mul(x: Tensor) -> Tensor:
    """silu(x[..., :I]) * x[..., I:].

    x [..., 2 I] of float32, bfloat16 or float16; a matrix may have a row stride, other ranks are
    contiguous. Returns a contiguous [..., I] of x's dtype. RuntimeError on a mismatch.
    """
    return _SILU_AND_MUL.call(x)  # type: ignore[no-any-return]


def gelu_and_mul(x: Tensor, tanh: bool) -> Tensor:
    """gelu(x[..., :I]) * x[..., I:], by the tanh approximation or exactly; else as silu_and_mul."""
    return _GELU_AND_MUL.call(x, tanh)  # type: ignore[no-any-return]
