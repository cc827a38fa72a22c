# SPDX-License-Identifier: Apache-2.0
"""Launches the gated delta rule over prompts in Triton."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from rtp_llm.kernels.triton.linear_attention.gated_delta_rule_kernel import (
    CHUNK,
    advance_kernel,
    prepare_kernel,
)
from rtp_llm.kernels.triton.processors import Processors, processors_of

_LEAST_DOT = 16  # the smallest side of a product
_MAX_VALUES = 128  # value elements prepared at a time
_MAX_STAGES = 3
_LONG = 512  # average tokens per sequence from which a batch is treated as prompts
_Launch = tuple[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]]
_compiled: set[tuple[Any, ...]] = set()


@dataclass(frozen=True)
class DeltaTile:
    """How `advance_kernel` is launched.

    The columns of S per program, warps, chunks loaded ahead, and whether S^T is the left operand.
    """

    columns: int
    warps: int
    stages: int
    transposed: bool = False


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
    """See rtp_llm.ops.triton_gated_delta_chunks. `tile` replaces the choice of `choose_tile`.

    Needs scratch memory of CHUNK + Dk + Dv numbers per token and value head: 20 KiB per token for
    Qwen3-Next in bfloat16, 320 MiB for a step of 16,384 tokens. The first call compiles all tiles,
    to avoid compiling in the middle of serving.
    """
    tokens, sequences = qkv.shape[0], seq_lens.shape[0]
    _, heads, value_size, key_size = state.shape
    if tokens == 0 or sequences == 0:
        return
    gpu = processors_of(qkv.device)
    tiles = tiles_for(qkv.dtype, key_size, value_size, gpu)
    inputs = qkv, ba, a_log, dt_bias
    states = state, ring_k, ring_u, ring_g, folded
    indices = cu_seqlens_q, seq_lens, state_read, state_write
    key = qkv.device, qkv.dtype, state.dtype, *state.shape[1:], *ring_k.shape[1:]
    if key not in _compiled and qkv.is_cuda:
        _compiled.add(key)
        for each in tiles:
            for kernel, grid, arguments, options in _launches(each, out, inputs, states, indices):
                kernel.warmup(*arguments, grid=grid, **options)
    columns = heads * value_size * (sequences if tokens >= _LONG * sequences else 1)
    chosen = tile or choose_tile(tiles, columns, gpu.count)
    for kernel, grid, arguments, options in _launches(chosen, out, inputs, states, indices):
        kernel[grid](*arguments, **options)


def tiles_for(
    dtype: torch.dtype, key_size: int, value_size: int, gpu: Processors
) -> list[DeltaTile]:
    """The tiles that are correct, and fast on an H200, in ascending order of columns."""
    if dtype is torch.float32:
        return [DeltaTile(16, 4, 1)]

    def stages(columns: int) -> int:
        chunk: int = dtype.itemsize * CHUNK.value * (3 * key_size + CHUNK.value + columns)
        return max(1, min(_MAX_STAGES, gpu.shared_bytes // chunk))

    wide = [DeltaTile(c, c // 16, stages(c), True) for c in (64, 128) if value_size % c == 0]
    return [DeltaTile(32, 4, stages(32)), *wide]


def choose_tile(tiles: list[DeltaTile], columns: int, multiprocessors: int) -> DeltaTile:
    """Choose the first tile for which `columns` columns of S in all fit on the GPU at once.

    A chunk takes 1.38 us with 32 columns per program, 1.46 us with 64 and 2.5 us with 128.
    """
    fitting = (tile for tile in tiles if columns <= multiprocessors * tile.columns)
    return next(fitting, tiles[-1])


def _launches(
    tile: DeltaTile,
    out: Tensor,
    inputs: tuple[Tensor, ...],
    states: tuple[Tensor, ...],
    indices: tuple[Tensor, ...],
) -> Iterator[_Launch]:
    """The kernel launches of a call, in order."""
    qkv, ba, state, ring_k = *inputs[:2], *states[:2]
    blocks, heads, value_size, _ = state.shape
    ring, key_heads = ring_k.shape[1:3]
    cu_seqlens_q, sequences = indices[0], len(indices[1])
    shortest, chunk = ring // 2 + 1, CHUNK.value
    common, of_values = _sizes(qkv, state, key_heads)
    of_values = of_values | {"TRANSPOSED": tile.transposed}
    padded_key, padded_value = common["PADDED_KEY"], of_values["PADDED_VALUE"]
    programs = len(qkv) // chunk + sequences + 1, heads
    scores = qkv.new_empty(*programs, chunk, chunk)
    w = qkv.new_empty(*programs, chunk, padded_key)
    u = qkv.new_empty(*programs, chunk, padded_value)
    factors = qkv.new_empty(*programs, 2, chunk, dtype=torch.float32)
    decays = qkv.new_empty(programs, dtype=torch.float32)
    prepared = w, u, scores, factors, decays
    rows = *inputs, cu_seqlens_q, sequences, shortest, qkv.stride(0), ba.stride(0)
    # Eight warps read beyond shared memory in products of float32 with 32 columns (Triton 3.6).
    compiled = {"num_warps": 4, "num_stages": 1}
    own = common | of_values | compiled | {"VALUES": min(_MAX_VALUES, padded_value)}
    yield prepare_kernel, programs, (*prepared, *rows), own
    given = *indices, blocks, shortest, qkv.stride(0), *(each.stride(0) for each in states)
    own = {"RING": ring, "COLUMNS": tile.columns, "STAGES": tile.stages, "num_warps": tile.warps}
    grid = triton.cdiv(value_size, tile.columns), heads, sequences
    yield advance_kernel, grid, (out, qkv, *prepared, *states, *given), common | of_values | own


def _sizes(qkv: Tensor, state: Tensor, key_heads: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Constants of heads and keys, which all kernels share, and constants of values."""
    _, heads, value_size, key_size = state.shape
    parts = qkv.dtype is torch.float32 and torch.version.hip is None  # AMD GPUs have no TF32
    common = {
        "KEY_HEADS": key_heads,
        "HEADS": heads,
        "KEY": key_size,
        "PADDED_KEY": max(_LEAST_DOT, triton.next_power_of_2(key_size)),
        "PRECISION": "tf32x3" if parts else "ieee",
    }
    values = min(_MAX_VALUES, max(_LEAST_DOT, triton.next_power_of_2(value_size)))
    return common, {"VALUE": value_size, "PADDED_VALUE": triton.cdiv(value_size, values) * values}
