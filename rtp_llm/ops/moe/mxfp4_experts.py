# SPDX-License-Identifier: Apache-2.0
"""Experts with biases in MXFP4 on tensor cores: gate and up with the SwiGLU of gpt-oss, then down.

Weights and scales are int8, bytes in the layout of pack_experts (mxfp4_experts_layout.py), N a
multiple of 32 and K of 64; x, bias and results are bfloat16. Entries are sorted by expert
(sort_by_expert); rows of entries without an expert are undefined. Sums are float32, and a row gives
the same bits in every batch of one size class. RuntimeError on a mismatch.
"""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import IndexTensor, operator


@operator(optional=True)
def mxfp4_experts_gate_up(
    x: Tensor,
    weight: Tensor,
    scales: Tensor,
    bias: Tensor,
    rows: IndexTensor,
    offsets: IndexTensor,
    top_k: int,
    alpha: float,
    limit: float,
) -> Tensor:
    """gate * sigmoid(alpha gate) * (up + 1) of each sorted entry: [R, I].

    The gate is at most `limit`, up within +-limit. x [T, K], contiguous; weight [E, 2 I, K / 2] and
    scales [E, 2 I, K / 32], packed as gated; bias [E, 2 I], gate first; rows int32 [R] and offsets
    int32 [E + 1] as sort_by_expert returns them for ids [T, top_k].
    """
    return x.new_empty(rows.shape[0], weight.shape[1] // 2)


@operator(optional=True)
def mxfp4_experts_down(
    x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor, offsets: IndexTensor
) -> Tensor:
    """Each sorted entry x [R, K] times its expert's weight [E, N, K / 2], plus bias [E, N]: [R, N].

    scales [E, N, K / 32]; offsets int32 [E + 1].
    """
    return x.new_empty(x.shape[0], weight.shape[1])
