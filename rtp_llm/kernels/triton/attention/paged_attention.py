# SPDX-License-Identifier: Apache-2.0
"""Launches paged attention in Triton."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from rtp_llm.kernels.triton.attention.paged_attention_kernel import attention_kernel, merge_kernel
from rtp_llm.kernels.triton.processors import overlap_options, processors_of
from rtp_llm.kernels.triton.sequence_checks import check_sequences

_LOG2_E = math.log2(math.e)
# Measured on an H200 with batches of 1 to 256 and contexts of 1k to 64k.
_PROGRAMS_PER_PROCESSOR = 2
_ENOUGH_WAVES = 8
_LONG = 2048
_KEYS_WORTH_A_SPLIT = 128
_MAX_SPLITS = 64
_NARROW_ROWS = 64


@dataclass(frozen=True)
class Tile:
    """How a launch divides the work: query rows and keys per program, warps and load stages."""

    rows: int
    keys: int
    warps: int
    stages: int
    splits: int


def paged_attention(
    q: Tensor,
    kv_cache: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    scale: float,
    causal: bool = True,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """See rtp_llm.ops.triton_paged_attention. `tile` replaces the choice of `choose_tile`."""
    _check(q, kv_cache)
    check_sequences(cu_seqlens_q, seq_lens, block_table)
    out = q.new_empty(q.shape)
    if out.numel() == 0 or len(seq_lens) == 0:
        return out.zero_()
    tile = tile or _tile_for(q, kv_cache, len(seq_lens), max_seqlen_q, max_seqlen_k)
    lengths = (cu_seqlens_q, seq_lens, block_table)
    scales = None if k_scale is None or v_scale is None else (k_scale, v_scale)
    options = (max_seqlen_q, scale, causal, window, soft_cap, sinks, scales)
    if tile.splits == 1:
        _attend(tile, out, out, q, kv_cache, lengths, *options)
        return out
    shape = (*q.shape[:2], tile.splits)
    parts = q.new_empty((*shape, q.shape[2]), dtype=torch.float32)
    stats = q.new_empty((*shape, 2), dtype=torch.float32)
    _attend(tile, parts, stats, q, kv_cache, lengths, *options)
    head, padded = q.shape[2], triton.next_power_of_2(q.shape[2])
    merge_kernel[(shape[0] * shape[1],)](
        out, parts, stats, head, padded, shape[2], **overlap_options(q.device), num_warps=2
    )
    return out


def _attend(
    tile: Tile,
    out: Tensor,
    stats: Tensor,
    q: Tensor,
    kv_cache: Tensor,
    lengths: tuple[Tensor, Tensor, Tensor],
    max_seqlen_q: int,
    scale: float,
    causal: bool,
    window: int,
    soft_cap: float,
    sinks: Tensor | None,
    scales: tuple[Tensor, Tensor] | None,
) -> None:
    cu_seqlens_q, seq_lens, block_table = lengths
    tokens, heads, head = q.shape
    _, blocks, page, kv_heads, _ = kv_cache.shape
    group = heads // kv_heads
    per_tile = tile.rows // group
    decode = max_seqlen_q == 1 and tokens == len(seq_lens)
    tiles = len(seq_lens) if decode else tokens // per_tile + len(seq_lens) + 1
    factor = 2 * _LOG2_E * scale / soft_cap if soft_cap > 0 else _LOG2_E * scale
    attention_kernel[(tiles, kv_heads, tile.splits)](
        out, stats, q, kv_cache[0], kv_cache[1], cu_seqlens_q, seq_lens, block_table,
        q if sinks is None else sinks, *(scales or (stats, stats)), factor, soft_cap * _LOG2_E,
        window, len(seq_lens), tokens, heads, block_table.shape[1], blocks, q.stride(0),
        q.stride(1), *kv_cache.stride()[1:4], block_table.stride(0), GROUP=group, HEAD=head,
        PAGE=page, PADDED_HEAD=max(16, triton.next_power_of_2(head)), ROWS=tile.rows,
        TOKENS=per_tile, KEYS=tile.keys, SPLITS=tile.splits, DECODE=decode, CAUSAL=causal,
        HAS_WINDOW=window > 0, HAS_CAP=soft_cap > 0, HAS_SINKS=sinks is not None,
        HAS_SCALES=scales is not None,
        num_warps=tile.warps, num_stages=tile.stages, **overlap_options(q.device),
    )  # fmt: skip


def _tile_for(q: Tensor, kv_cache: Tensor, sequences: int, queries: int, keys: int) -> Tile:
    heads, head = q.shape[1:]
    kv_heads, size = kv_cache.shape[3], q.element_size()
    group = heads // kv_heads
    count = processors_of(q.device).count
    return choose_tile(sequences, group, kv_heads, head, queries, keys, size, count)


def choose_tile(
    sequences: int,
    group: int,
    kv_heads: int,
    head: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    element_size: int,
    multiprocessors: int,
) -> Tile:
    """Choose wide tiles for prompts, and narrow ones with split keys if there are few rows.

    Uses only host numbers: lengths are upper bounds, so that a captured graph is valid for every
    replay within them. Batches with more than one token per sequence get one of `prompt_tiles`.
    """
    wide, *narrow = prompt_tiles(group, head, element_size)
    if max_seqlen_q * group > _NARROW_ROWS:
        return wide
    decode = max_seqlen_q == 1
    rows = max(16, triton.next_power_of_2(group)) if decode else narrow[0].rows
    tiles = sequences * triton.cdiv(max_seqlen_q * group, rows) * kv_heads
    splits = _PROGRAMS_PER_PROCESSOR * multiprocessors // tiles
    if tiles < _ENOUGH_WAVES * multiprocessors and max_seqlen_k > _LONG:
        splits = max(splits, 2)  # evens out the last wave
    splits = max(1, min(splits, triton.cdiv(max_seqlen_k, _KEYS_WORTH_A_SPLIT), _MAX_SPLITS))
    if not decode:
        return max((tile for tile in narrow if tile.splits <= splits), key=lambda tile: tile.splits)
    return _narrow_tile(rows, head, element_size, 1 << (splits.bit_length() - 1))


def prompt_tiles(group: int, head: int, element_size: int) -> list[Tile]:
    """All tiles for batches with more than one token per sequence, the wide one first.

    There are few enough to compile all of them before the first request.
    """
    rows = triton.next_power_of_2(group)
    if head <= 128 and element_size == 2:
        wide = Tile(max(128, rows), 128, 8, 2, 1)
    else:
        wide = Tile(max(64, rows), 32, 4, 2, 1)
    rows = max(_NARROW_ROWS, rows)
    return [wide, *(_narrow_tile(rows, head, element_size, splits) for splits in (1, 8))]


def compile_tiles(
    kv_cache: Tensor,
    dtype: torch.dtype,
    num_heads: int,
    scale: float,
    *,
    causal: bool,
    windows: Iterable[int],
    soft_cap: float,
    has_sinks: bool = False,
    has_scales: bool = False,
    split_only: bool = False,
) -> None:
    """Compile the tiles of prompts and mixed batches, for each window, on a sequence without keys.

    Args:
        kv_cache: [2, N, S, Hk, D], of one layer; nothing is written to it.
        dtype: number type of the queries.
        split_only: only the tiles that split the keys of a sequence.
    """
    kv_heads, head = kv_cache.shape[3:]
    device = kv_cache.device
    qkv = torch.zeros(2, (num_heads + 2 * kv_heads) * head, dtype=dtype, device=device)
    q = qkv[:, : num_heads * head].view(2, num_heads, head)
    cu_seqlens = torch.tensor([0, 2], dtype=torch.int32, device=device)
    nothing = torch.zeros(1, dtype=torch.int32, device=device)
    sinks = torch.zeros(num_heads, device=device) if has_sinks else None
    scale_of = torch.ones(1, device=device) if has_scales else None
    for window in set(windows):
        for tile in prompt_tiles(num_heads // kv_heads, head, dtype.itemsize):
            if tile.splits > 1 or not split_only:
                paged_attention(
                    q, kv_cache, cu_seqlens, nothing, nothing.view(1, 1), 2, 1, scale, causal,
                    window, soft_cap, sinks, scale_of, scale_of, tile=tile,
                )  # fmt: skip


def _narrow_tile(rows: int, head: int, element_size: int, splits: int) -> Tile:
    if head <= 128 and element_size == 2:
        return Tile(rows, 64, 2 if rows == 16 else 4, 3, splits)
    return Tile(rows, 32, 4, 2, splits)


def _check(q: Tensor, kv_cache: Tensor) -> None:
    if q.dim() != 3 or kv_cache.dim() != 5 or kv_cache.shape[0] != 2:
        raise ValueError(
            "q must be [T, H, D] and the cache [2, N, S, Hk, D], "
            f"not {list(q.shape)} and {list(kv_cache.shape)}"
        )
    if kv_cache.shape[4] != q.shape[2] or q.shape[1] % kv_cache.shape[3]:
        raise ValueError(
            f"{q.shape[1]} heads of {q.shape[2]} do not fit "
            f"{kv_cache.shape[3]} KV heads of {kv_cache.shape[4]}"
        )
    if kv_cache.dtype not in (q.dtype, torch.float8_e4m3fn):
        raise ValueError(
            f"q is {q.dtype}, the KV cache {kv_cache.dtype}; both must be the same, "
            "or the cache float8_e4m3fn"
        )
    if q.stride(2) != 1 or kv_cache.stride(4) != 1:
        raise ValueError(
            "the elements of a head must be next to each other in q and in the KV cache"
        )
