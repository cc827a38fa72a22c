# SPDX-License-Identifier: Apache-2.0
"""Launches multi-head latent attention in Triton."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from rtp_llm.kernels.triton.attention.paged_attention_kernel import merge_kernel
from rtp_llm.kernels.triton.mla.mla_attention_kernel import expanded_kernel, latent_kernel
from rtp_llm.kernels.triton.processors import Processors, overlap_options, processors_of
from rtp_llm.kernels.triton.sequence_checks import check_sequences

_LOG2_E = math.log2(math.e)
_ROWS = 64  # heads, or tokens and heads, of a tile
_LEAST_ROWS = 16
_KEYS_WORTH_A_SPLIT = 128
_MAX_SPLITS = 64
_WIDE_SHARED = 200 << 10  # for tiles of 128 keys, the fastest for 16 heads on an H200


@dataclass(frozen=True)
class LatentTile:
    """How a launch divides the work: rows and keys per program, warps and load stages."""

    rows: int
    keys: int
    warps: int
    stages: int
    splits: int


def mla_attention(
    q: Tensor,
    cache: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    latent_size: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    scale: float,
    tile: LatentTile | None = None,
) -> Tensor:
    """See rtp_llm.ops.triton_mla_attention. `tile` replaces the choice of `choose_latent_tile`."""
    _check(q, cache)
    check_sequences(cu_seqlens_q, seq_lens, block_table)
    tokens, heads, _ = q.shape
    out = q.new_empty(tokens, heads, latent_size)
    if out.numel() == 0 or len(seq_lens) == 0:
        return out.zero_()
    decode = max_seqlen_q == 1 and tokens == len(seq_lens)
    tile = tile or choose_latent_tile(
        tokens, heads, max_seqlen_k, decode, q.element_size(), processors_of(q.device)
    )
    lengths = (cu_seqlens_q, seq_lens, block_table)
    if tile.splits == 1:
        _attend_latents(tile, out, out, q, cache, lengths, decode, scale)
        return out
    shape = (tokens, heads, tile.splits)
    parts = q.new_empty(*shape, latent_size, dtype=torch.float32)
    stats = q.new_empty(*shape, 2, dtype=torch.float32)
    _attend_latents(tile, parts, stats, q, cache, lengths, decode, scale)
    merge_kernel[(tokens * heads,)](
        out, parts, stats, latent_size, _padded(latent_size), tile.splits,
        num_warps=4, **overlap_options(q.device),
    )  # fmt: skip
    return out


def _attend_latents(
    tile: LatentTile,
    out: Tensor,
    stats: Tensor,
    q: Tensor,
    cache: Tensor,
    lengths: tuple[Tensor, Tensor, Tensor],
    decode: bool,
    scale: float,
) -> None:
    cu_seqlens_q, seq_lens, block_table = lengths
    tokens, heads, size = q.shape
    latent, group = out.shape[-1], min(heads, tile.rows)
    per_tile = 1 if decode else tile.rows // group
    tiles = tokens if decode else tokens // per_tile + len(seq_lens) + 1
    latent_kernel[(tiles, triton.cdiv(heads, group), tile.splits)](
        out, stats, q, cache, cu_seqlens_q, seq_lens, block_table, _LOG2_E * scale, len(seq_lens),
        tokens, heads, block_table.shape[1], cache.shape[0], q.stride(0), q.stride(1),
        cache.stride(0), cache.stride(1), block_table.stride(0), LATENT=latent,
        ROPE=size - latent, PAGE=cache.shape[1], PADDED_LATENT=_padded(latent),
        PADDED_ROPE=_padded(size - latent), ROWS=tile.rows, GROUP=group, TOKENS=per_tile,
        KEYS=tile.keys, SPLITS=tile.splits, DECODE=decode, num_warps=tile.warps,
        num_stages=tile.stages,
    )  # fmt: skip


def expanded_attention(
    q: Tensor,
    keys: Tensor,
    expanded: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    starts: Tensor,
    value_size: int,
    scale: float,
) -> Tensor:
    """See rtp_llm.ops.triton_expanded_attention."""
    tokens, heads, _ = q.shape
    out = q.new_empty(tokens, heads, value_size)
    if out.numel() == 0 or len(seq_lens) == 0:
        return out.zero_()
    rope = keys.shape[1]
    nope = q.shape[2] - rope
    wide = q.element_size() == 2
    per_tile = 128 if wide else 32
    expanded_kernel[(tokens // per_tile + len(seq_lens) + 1, heads)](
        out, q, keys, expanded, cu_seqlens_q, seq_lens, starts, _LOG2_E * scale, len(seq_lens),
        tokens, heads, q.stride(0), q.stride(1), keys.stride(0), expanded.stride(0), NOPE=nope,
        ROPE=rope, VALUE=value_size, PADDED_NOPE=_padded(nope), PADDED_ROPE=_padded(rope),
        PADDED_VALUE=_padded(value_size), TOKENS=per_tile, KEYS=64 if wide else 32,
        num_warps=8 if wide else 4, num_stages=2,
    )  # fmt: skip
    return out


def choose_latent_tile(
    tokens: int, heads: int, max_seqlen_k: int, decode: bool, element_size: int, gpu: Processors
) -> LatentTile:
    """Choose tiles of up to 64 heads, with the keys split until the GPU is full.

    Uses only host numbers: lengths are upper bounds, so that a captured graph is valid for every
    replay within them. Batches with more than one token per sequence use one tile for any length.
    """
    few = max(_LEAST_ROWS, triton.next_power_of_2(heads))
    rows = min(_ROWS, few) if decode else _ROWS
    if element_size > 2:
        return LatentTile(_LEAST_ROWS if decode and heads <= _LEAST_ROWS else 32, 16, 4, 1, 1)
    splits = 1
    if decode:
        tiles = tokens * triton.cdiv(heads, rows)
        splits = max(1, min(gpu.count // tiles, max_seqlen_k // _KEYS_WORTH_A_SPLIT, _MAX_SPLITS))
        splits = 1 << (splits.bit_length() - 1)
    if rows < _ROWS:
        wide = rows == _LEAST_ROWS and gpu.shared_bytes >= _WIDE_SHARED
        return LatentTile(rows, 128 if wide else 64, 4, 2, splits)
    return LatentTile(rows, 64, 8, 1, splits)


def _padded(size: int) -> int:
    return max(16, int(triton.next_power_of_2(size)))


def _check(q: Tensor, cache: Tensor) -> None:
    if q.dim() != 3 or cache.dim() != 3 or cache.shape[2] != q.shape[2]:
        raise ValueError(
            "q must be [T, H, R + P] and the cache [N, S, R + P], "
            f"not {list(q.shape)} and {list(cache.shape)}"
        )
    if cache.dtype != q.dtype or q.stride(2) != 1 or cache.stride(2) != 1:
        raise ValueError(f"q is {q.dtype}, the cache {cache.dtype}; both must be the same, packed")
