# SPDX-License-Identifier: Apache-2.0
"""Linear layers with FP8 weights whose activations stay floats."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import operator


@operator(optional=True)
def fp8_weight_linear(
    x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None = None
) -> Tensor:
    """x @ (weight * scales).T + bias; neither x nor the products are quantised.

    x [T, K] of any float dtype and weight e4m3 [N, K], whose row strides are free; scales float32
    [ceil(N / 128), ceil(K / 128)] for blocks of 128 x 128 weights, or [N, 1] for rows; bias [N] of
    x's dtype. Returns [T, N] in x's dtype, contiguous. A row of x gives the same bits in every
    batch. RuntimeError on a mismatch.
    """
    return x.new_empty((x.shape[0], weight.shape[0]))
