# SPDX-License-Identifier: Apache-2.0
"""Launches experts with biases in Triton: gate and up with the SwiGLU of gpt-oss, then down."""

from __future__ import annotations

import triton
from torch import Tensor

from rtp_llm.kernels.triton.moe.biased_experts_kernel import (
    biased_down_kernel,
    biased_gate_up_kernel,
)
from rtp_llm.kernels.triton.moe.moe_experts import Tile, all_tiles, choose_tiles, tile_bound
from rtp_llm.kernels.triton.processors import overlap_options


def gate_up(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    rows: Tensor,
    offsets: Tensor,
    top_k: int,
    alpha: float,
    limit: float,
    scales: Tensor | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """See rtp_llm.ops.triton_biased_gate_up. `tile` replaces the choice of `choose_tiles`."""
    tile = tile or choose_tiles(rows.numel(), weight.shape[0], x.device).gate_up
    out = x.new_empty(rows.numel(), weight.shape[1] // 2)
    operands = (weight, scales, bias)
    _launch(biased_gate_up_kernel, out, x, operands, (rows, offsets), top_k, (alpha, limit), tile)
    return out


def down(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    rows: Tensor,
    offsets: Tensor,
    scales: Tensor | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """See rtp_llm.ops.triton_biased_down. `tile` replaces the choice of `choose_tiles`."""
    tile = tile or choose_tiles(rows.numel(), weight.shape[0], x.device).down
    out = x.new_empty(x.shape[0], weight.shape[1])
    operands = (weight, scales, bias)
    _launch(biased_down_kernel, out, x, operands, (rows, offsets), 1, (0.0, 0.0), tile)
    return out


def _launch(
    kernel: triton.JITFunction[object],
    out: Tensor,
    x: Tensor,
    operands: tuple[Tensor, Tensor | None, Tensor],
    sorting: tuple[Tensor, Tensor],
    top_k: int,
    activation: tuple[float, float],
    tile: Tile,
) -> None:
    """`operands`: weights, their scales if they are in MXFP4, biases; `sorting`: rows, offsets."""
    entries, size = out.shape
    if entries == 0:
        return
    weight, scales, bias = operands
    rows, offsets = sorting
    alpha, limit = activation
    experts, depth = weight.shape[0], x.shape[1]
    groups = -(-tile_bound(entries, experts, tile.rows) // tile.group)
    columns = -(-size // tile.columns)
    kernel[(groups * tile.group * columns,)](
        out, x, weight, scales, bias, rows, offsets, None, ALPHA=alpha, LIMIT=limit, SIZE=size,
        DEPTH=depth, TOP_K=top_k, EXPERTS=experts, PADDED=triton.next_power_of_2(experts),
        ROWS=tile.rows, COLUMNS=tile.columns, STEP=tile.step, GROUP=tile.group,
        num_warps=tile.warps, num_stages=tile.stages, **overlap_options(out.device),
    )  # fmt: skip


def compile_tiles(
    gate_up_operands: tuple[Tensor, Tensor | None, Tensor],
    down_operands: tuple[Tensor, Tensor | None, Tensor],
    rows: Tensor,
    offsets: Tensor,
    top_k: int,
    activation: tuple[float, float],
) -> None:
    """Compile all tiles by running each on one token without an expert.

    Args:
        gate_up_operands: weight, scales or None, and bias.
        rows: int32 [top_k], and
        offsets: int32 [E + 1], as sort_by_expert makes them of ids that are all -1.
        activation: alpha and limit.
    """
    (first, first_scales, first_bias), (second, second_scales, second_bias) = (
        gate_up_operands,
        down_operands,
    )
    x = first_bias.new_zeros(1, second_bias.shape[1])
    gated = first_bias.new_zeros(top_k, first_bias.shape[1] // 2)
    for tiles in all_tiles(x.device):
        gate_up(
            x, first, first_bias, rows, offsets, top_k, *activation, first_scales,
            tile=tiles.gate_up,
        )  # fmt: skip
        down(gated, second, second_bias, rows, offsets, second_scales, tile=tiles.down)
