# SPDX-License-Identifier: Apache-2.0
"""Experts with biases in Triton: gate and up with the SwiGLU of gpt-oss, then down.

Weights are floats of x's dtype, or MXFP4 as in mxfp4_grouped_linear, which is decoded in registers.
Entries are sorted by expert (sort_by_expert); rows of entries without an expert are undefined.
Shapes are not checked.
"""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import operator


@operator(triton="moe.biased_experts:gate_up")
def triton_biased_gate_up(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    rows: Tensor,
    offsets: Tensor,
    top_k: int,
    alpha: float,
    limit: float,
    scales: Tensor | None = None,
) -> Tensor:
    """gate * sigmoid(alpha gate) * (up + 1) of each sorted entry: [R, I].

    The gate is at most `limit`, up within +-limit. x [T, K] (contiguous, 16-bit); weight
    [E, 2 I, K] of its dtype, or int8 [E, 2 I, K / 2] with scales int8 [E, 2 I, K / 32]; bias
    [E, 2 I]; rows int32 [R] and offsets int32 [E + 1] as sort_by_expert returns them for ids
    [T, top_k].
    """
    return x.new_empty(rows.numel(), weight.shape[1] // 2)


@operator(triton="moe.biased_experts:down")
def triton_biased_down(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    rows: Tensor,
    offsets: Tensor,
    scales: Tensor | None = None,
) -> Tensor:
    """Each sorted entry x [R, I] times its expert's weight [E, N, I], plus bias [E, N]: [R, N].

    Weight and scales as in triton_biased_gate_up.
    """
    return x.new_empty(x.shape[0], weight.shape[1])
