"""Compiles every tile of triton_gate_up and triton_down before the first request needs it."""

from __future__ import annotations

from torch import Tensor


def compile_triton_moe(
    gate_up_weight: Tensor, down_weight: Tensor, rows: Tensor, offsets: Tensor, top_k: int
) -> None:
    """Run each tile on one token without an expert.

    Args:
        gate_up_weight: [E, 2 I, K].
        down_weight: [E, N, I].
        rows: int32 [top_k], and
        offsets: int32 [E + 1], as sort_by_expert makes them of ids that are all -1.
    """
    from rtp_llm.kernels.triton.moe.moe_experts import all_tiles, down, gate_up

    x = gate_up_weight.new_zeros(1, gate_up_weight.shape[2])
    for tiles in all_tiles(x.device):
        gated = gate_up(x, gate_up_weight, rows, offsets, top_k, tile=tiles.gate_up)
        down(gated, down_weight, rows, offsets, tile=tiles.down)
