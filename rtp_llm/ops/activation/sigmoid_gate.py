# SPDX-License-Identifier: Apache-2.0
"""Sigmoid gates of Qwen3-Next, for the output of attention and for shared experts."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import MutableTensor, operator


@operator
def sigmoid_gate(x: MutableTensor, gate: Tensor) -> None:
    """In place: x *= sigmoid(gate), in float32 and rounded once.

    x and gate of one shape and dtype, float32, bfloat16 or float16: [T, C] with free row strides,
    or [T, H, D] with free token and head strides; not overlapping. RuntimeError on a mismatch.
    """


@operator(optional=True)
def add_sigmoid_gated(out: MutableTensor, y: Tensor, x: Tensor, gate: Tensor) -> None:
    """In place: out[t] += y[t] * sigmoid(x[t] . gate), in float32 and rounded once.

    out and y [T, N], x [T, K] and gate [1, K], all contiguous and of one dtype: float32, bfloat16
    or float16. RuntimeError on a mismatch.
    """
