"""Launches the gated delta rule over prompts in Triton."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from rtp_llm.kernels.triton.linear_attention.gated_delta_rule_kernel import (
    CHUNK,
    advance_kernel,
    invert_kernel,
    score_kernel,
)

_LEAST_DOT = 16  # the smallest side of a product


@dataclass(frozen=True)
class DeltaTile:
    """Columns of S that a program has, its warps, and chunks that are loaded ahead."""

    columns: int
    warps: int
    stages: int


def gated_delta_chunks(
    qkv: Tensor,
    ba: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    ring_k: Tensor,
    ring_u: Tensor,
    ring_g: Tensor,
    folded: Tensor,
    out: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    state_read: Tensor,
    state_write: Tensor,
    tile: DeltaTile | None = None,
) -> None:
    """See rtp_llm.ops.triton_gated_delta_chunks. `tile` replaces the choice of `choose_tile`."""
    tokens, sequences = qkv.shape[0], seq_lens.shape[0]
    _, heads, value_size, key_size = state.shape
    ring, key_heads = ring_k.shape[1:3]
    if tokens == 0 or sequences == 0:
        return
    chunk, shortest = CHUNK.value, ring // 2 + 1
    matrices = qkv.new_empty(2, heads, tokens, chunk)
    factors = qkv.new_empty(heads, 4, tokens, dtype=torch.float32)
    wide = qkv.dtype is torch.float32
    common = {
        "KEY_HEADS": key_heads,
        "HEADS": heads,
        "KEY": key_size,
        "PADDED_KEY": max(_LEAST_DOT, triton.next_power_of_2(key_size)),
        # AMD's GPUs have no products in three parts; 16-bit ones are the same in either.
        "PRECISION": "tf32x3" if wide and torch.version.hip is None else "ieee",
    }
    solve = "ieee" if torch.version.hip else "tf32x3"
    programs = tokens // chunk + sequences + 1, heads
    rows = qkv, ba, a_log, dt_bias, cu_seqlens_q, sequences, tokens, shortest
    strides = qkv.stride(0), ba.stride(0)
    invert_kernel[programs](
        matrices[0], *rows, *strides, **common, SOLVE=solve, num_warps=4 if wide else 1,
        num_stages=1,
    )  # fmt: skip
    score_kernel[programs](matrices[1], factors, *rows, *strides, **common, num_warps=4)
    tile = tile or choose_tile(qkv)
    of_blocks = (each.stride(0) for each in (state, ring_k, ring_u, ring_g, folded))
    advance_kernel[(triton.cdiv(value_size, tile.columns), heads, sequences)](
        out, qkv, matrices[0], matrices[1], factors, state, ring_k, ring_u, ring_g, folded,
        cu_seqlens_q, seq_lens, state_read, state_write, tokens, state.shape[0], shortest,
        qkv.stride(0), *of_blocks, RING=ring, VALUE=value_size, COLUMNS=tile.columns,
        STAGES=tile.stages, **common, num_warps=tile.warps,
    )  # fmt: skip


def choose_tile(qkv: Tensor) -> DeltaTile:
    """The quickest on an H200 of those that are right."""
    wide = qkv.dtype is torch.float32
    return DeltaTile(16, 4, 1) if wide else DeltaTile(32, 4, 2)
