# SPDX-License-Identifier: Apache-2.0
"""Activations, gated and plain; float32 maths, whatever the element type."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import operator


def _half(x: Tensor) -> Tensor:
    if x.shape[-1] % 2:
        raise RuntimeError(f"x is {list(x.shape)}; expected an even last dimension")
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


@operator
def silu_and_mul(x: Tensor) -> Tensor:
    """silu(x[..., :I]) * x[..., I:].

    x [..., 2 I] of float32, bfloat16 or float16; a matrix may have a row stride, other ranks are
    contiguous. Returns a contiguous [..., I] of x's dtype. RuntimeError on a mismatch.
    """
    return _half(x)


@operator
def gelu_and_mul(x: Tensor, tanh: bool) -> Tensor:
    """gelu(x[..., :I]) * x[..., I:], with the tanh approximation if `tanh`, else exact.

    Shapes, dtypes and errors as for silu_and_mul.
    """
    return _half(x)


@operator
def gelu(x: Tensor, tanh: bool) -> Tensor:
    """gelu(x), by the tanh approximation or exactly.

    x [..., C] of float32, bfloat16 or float16; a matrix may have a row stride, other ranks are
    contiguous. Returns a contiguous tensor like x. RuntimeError on a mismatch.
    """
    return x.new_empty(x.shape)
