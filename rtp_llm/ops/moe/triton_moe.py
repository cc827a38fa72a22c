# SPDX-License-Identifier: Apache-2.0
"""Experts of a mixture in Triton: gate and up with the activation, then down.

Entries are sorted by expert (sort_by_expert); rows of entries without an expert are undefined.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.declare import operator
from rtp_llm.ops.fp8.fp8_blocks import E4M3


@operator(triton="moe.moe_experts:gate_up")
def triton_gate_up(
    x: Tensor,
    weight: Tensor,
    rows: Tensor,
    offsets: Tensor,
    top_k: int,
    shared: Tensor | None = None,
    tiles: Tensor | None = None,
    x_scales: Tensor | None = None,
    weight_scales: Tensor | None = None,
) -> Tensor:
    """silu(gate) * up of each sorted entry: [R, I].

    x [T, K] (contiguous, 16-bit), weight [E, 2 I, K] of its dtype; rows int32 [R] and offsets int32
    [E + 1] as sort_by_expert returns them for ids [T, top_k]. shared [2 I, K] is the weight of one
    additional expert after the others; tiles int32 [R] as returned by route_experts, which saves
    kernels a search. FP8 operands (e4m3, without shared) come with float32 scales: x_scales [T, 1]
    and weight_scales [E, 2 I, 1]; the result is then bfloat16. Shapes are not checked.
    """
    return _empty(x, rows.numel(), weight.shape[1] // 2)


@operator(triton="moe.moe_experts:down")
def triton_down(
    x: Tensor,
    weight: Tensor,
    rows: Tensor,
    offsets: Tensor,
    shared: Tensor | None = None,
    tiles: Tensor | None = None,
    x_scales: Tensor | None = None,
    weight_scales: Tensor | None = None,
) -> Tensor:
    """Each sorted entry x [R, I] times its expert's weight [E, N, I] transposed: [R, N].

    shared [N, I], tiles, x_scales [R, 1] and weight_scales [E, N, 1] as in triton_gate_up.
    """
    return _empty(x, x.shape[0], weight.shape[1])


def _empty(x: Tensor, rows: int, size: int) -> Tensor:
    return x.new_empty(rows, size, dtype=torch.bfloat16 if x.dtype == E4M3 else x.dtype)
