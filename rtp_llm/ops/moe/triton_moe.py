# SPDX-License-Identifier: Apache-2.0
"""Experts of a mixture in Triton: gate and up with the activation, then down.

Entries are sorted by expert (sort_by_expert); rows of entries without an expert are undefined.
"""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import operator


@operator(triton="moe.moe_experts:gate_up")
def triton_gate_up(
    x: Tensor,
    weight: Tensor,
    rows: Tensor,
    offsets: Tensor,
    top_k: int,
    shared: Tensor | None = None,
    tiles: Tensor | None = None,
) -> Tensor:
    """silu(gate) * up of each sorted entry: [R, I].

    x [T, K] (contiguous, 16-bit), weight [E, 2 I, K] of its dtype; rows int32 [R] and offsets int32
    [E + 1] as sort_by_expert makes them of ids [T, top_k]. shared [2 I, K] is the weight of one
    more expert behind the others; tiles int32 [R] as route_experts makes them, which saves kernels
    the search.
    """
    return x.new_empty(rows.numel(), weight.shape[1] // 2)


@operator(triton="moe.moe_experts:down")
def triton_down(
    x: Tensor,
    weight: Tensor,
    rows: Tensor,
    offsets: Tensor,
    shared: Tensor | None = None,
    tiles: Tensor | None = None,
) -> Tensor:
    """Each sorted entry x [R, I] by its expert's weight [E, N, I]: [R, N]. shared [N, I] and tiles
    as in triton_gate_up."""
    return x.new_empty(x.shape[0], weight.shape[1])
