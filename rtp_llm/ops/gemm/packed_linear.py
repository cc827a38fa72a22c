# SPDX-License-Identifier: Apache-2.0
"""Linear layers with a float32 weight packed at load time, and the activation after them."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import operator


@operator(optional=True)
def packed_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, outputs: int, activation: str = "none"
) -> Tensor:
    """activation(x @ unpacked(weight).T + bias) in float32.

    x [T, K] float32 (the row stride is free); weight float32 [ceil(outputs / 64), K, 64], as
    rtp_llm.ops.gemm.packed_layout.pack_columns makes it of [outputs, K]; bias [outputs].
    activation: "none", "gelu" (exact) or "gelu_tanh". Sums run over K in order: a row of x gives
    the same bits in every batch. Returns [T, outputs], contiguous. RuntimeError on a mismatch.
    """
    return x.new_empty((x.shape[0], outputs))
