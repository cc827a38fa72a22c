# SPDX-License-Identifier: Apache-2.0
"""Paged attention in Triton: one kernel for prefill, chunks, decode and mixtures of them.

A program attends for a tile of query rows of one KV head, over one part of the sequence's keys. A
tile's rows are tokens times the query heads that share the KV head, so that keys and values are
read once for all of them (grouped-query packing). With few tiles the keys are split over more
programs, and `merge_kernel` puts their results together (split-KV, as in FlashDecoding). The
softmax is the online one of FlashAttention-2 (https://arxiv.org/abs/2307.08691), in powers of two.
8-bit keys and values are widened to the dtype of the queries as they are read. Products of float32
numbers are exact: AMD's CDNA2 has no others, and 16-bit products are not affected.

Arguments that change from step to step are not specialised (`VARYING`, `UNALIGNED`); otherwise
Triton would compile a variant for counts of 1 or divisible by 16 in the middle of serving.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
VARYING = ("num_seqs", "num_tokens", "max_blocks", "num_blocks", "table_stride", "window")
UNALIGNED = ("cu_ptr", "seq_lens_ptr", "table_ptr")


@triton.jit
def find_sequence(cu_ptr, num_seqs, tile, TOKENS: tl.constexpr):
    """The sequence that a tile belongs to; num_seqs for tiles past the last sequence.

    Sequence i owns the tiles from cu[i] // TOKENS + i on: at least as many as it needs.
    """
    low = 0
    high = num_seqs + 1
    while low < high:
        middle = (low + high) // 2
        if tl.load(cu_ptr + middle) // TOKENS + middle <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def _attend_keys(
    q, top, total, result, begin, end, position, row_table, k_ptr, v_ptr, head_offset,
    factor, soft_cap, window, high, max_blocks, num_blocks, cache_stride_block,
    cache_stride_slot, HEAD: tl.constexpr, PADDED_HEAD: tl.constexpr, PAGE: tl.constexpr,
    KEYS: tl.constexpr, CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """The online softmax of `q` over the keys from `begin` to `end`; returns its state.

    `factor` brings scores to base 2. Without MASKED every row sees every key of the range, except
    for the keys of missing blocks.
    """
    dims = tl.arange(0, PADDED_HEAD)
    for key in range(begin, end, KEYS):
        keys = key + tl.arange(0, KEYS)
        page = keys // PAGE
        if MASKED:
            block = tl.load(row_table + page, mask=(keys < high) & (page < max_blocks), other=-1)
        else:
            block = tl.load(row_table + page, mask=page < max_blocks, other=-1)
        present = (block >= 0) & (block < num_blocks)
        slot = block.to(tl.int64) * cache_stride_block + (keys % PAGE) * cache_stride_slot
        slot += head_offset
        mask = present[:, None]
        if PADDED_HEAD != HEAD:
            mask = mask & (dims < HEAD)[None, :]
        k = tl.load(k_ptr + slot[:, None] + dims[None, :], mask=mask, other=0.0)
        scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee")
        if HAS_CAP:
            # factor is the score's scale over the cap, times 2 log2(e): tanh without overflow
            small = tl.exp2(-tl.abs(scores) * factor)
            bent = (1.0 - small) / (1.0 + small)
            scores = soft_cap * tl.where(scores < 0, -bent, bent)
        else:
            scores = scores * factor
        seen = present[None, :]
        if MASKED:
            if CAUSAL:
                seen = seen & (keys[None, :] <= position[:, None])
            if HAS_WINDOW:
                seen = seen & (position[:, None] - keys[None, :] < window)
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        # A row that has seen no key yet has no maximum: its weights stay zero.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - base[:, None])
        keep = tl.exp2(top - base)
        total = total * keep + tl.sum(weights, 1)
        result = result * keep[:, None]
        v = tl.load(v_ptr + slot[:, None] + dims[None, :], mask=mask, other=0.0)
        result = tl.dot(weights.to(q.dtype), v.to(q.dtype), result, input_precision="ieee")
        top = higher
    return top, total, result


@triton.jit
def tokens_of(
    tile, cu_ptr, seq_lens_ptr, num_seqs, num_tokens, TOKENS: tl.constexpr, DECODE: tl.constexpr
):
    """A tile's sequence, its first token, number of tokens, the tile's first token, and keys.

    Tokens past the last sequence form one extra sequence without keys, so their results are zero.
    """
    if DECODE:  # at most one token a sequence, as many tokens as sequences
        seq = tile
        first = tl.load(cu_ptr + seq)
        count = tl.load(cu_ptr + seq + 1) - first
        num_keys = tl.load(seq_lens_ptr + seq) if count > 0 else 0
        # A sequence without a token takes one of the tokens past the last sequence.
        first = first if count > 0 else tl.load(cu_ptr + num_seqs) + seq - first
        count = 1
        start = 0
    else:
        seq = find_sequence(cu_ptr, num_seqs, tile, TOKENS)
        first = tl.load(cu_ptr + seq)
        inside = seq < num_seqs
        count = (tl.load(cu_ptr + seq + 1) if inside else num_tokens) - first
        num_keys = tl.load(seq_lens_ptr + seq) if inside else 0
        start = (tile - (first // TOKENS + seq)) * TOKENS
    return seq, first, count, start, num_keys


@triton.jit
def key_range(
    begin, rows, num_keys, window, split, KEYS: tl.constexpr, SPLITS: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr,
):  # fmt: skip
    """The key range of this program, and the subrange that every row sees.

    The tile's rows stand at the positions from `begin` to `begin + rows`.
    """
    low = 0
    high = num_keys
    if CAUSAL:
        high = tl.minimum(num_keys, begin + rows)
    if HAS_WINDOW:
        low = tl.maximum(0, begin - window + 1) // KEYS * KEYS
    if SPLITS > 1:
        part = tl.cdiv(tl.cdiv(high - low, SPLITS), KEYS) * KEYS
        low = low + split * part
        high = tl.maximum(low, tl.minimum(high, low + part))
    clear_low = low
    clear_high = low + (high - low) // KEYS * KEYS
    if CAUSAL:
        seen_by_all = tl.maximum(begin + 1, low)
        clear_high = tl.minimum(clear_high, low + (seen_by_all - low) // KEYS * KEYS)
    if HAS_WINDOW:
        unseen = tl.maximum(begin + rows - window - low, 0)
        clear_low = tl.minimum(low + tl.cdiv(unseen, KEYS) * KEYS, high)
        clear_high = tl.maximum(clear_low, clear_high)
    return low, clear_low, clear_high, high


@triton.jit(do_not_specialize=VARYING, do_not_specialize_on_alignment=UNALIGNED)
def attention_kernel(
    out_ptr, stats_ptr, q_ptr, k_ptr, v_ptr, cu_ptr, seq_lens_ptr, table_ptr, sinks_ptr,
    k_scale_ptr, v_scale_ptr, factor, soft_cap, window, num_seqs, num_tokens, num_heads, max_blocks,
    num_blocks, q_stride_token, q_stride_head, cache_stride_block, cache_stride_slot,
    cache_stride_head, table_stride, GROUP: tl.constexpr, HEAD: tl.constexpr,
    PADDED_HEAD: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr,
    KEYS: tl.constexpr, SPLITS: tl.constexpr, DECODE: tl.constexpr, CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr, HAS_SINKS: tl.constexpr,
    HAS_SCALES: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Grid: tiles of ROWS rows (TOKENS tokens of GROUP heads), KV heads, parts of the keys.

    out is [T, H, D]; with SPLITS > 1 float32 [T, H, SPLITS, D], not yet divided by the sum, and
    stats float32 [T, H, SPLITS, 2] has each part's maximum (base 2) and sum. factor and soft_cap:
    see _attend_keys. OVERLAPS: the kernel is launched while the previous one may still run.
    """
    if OVERLAPS:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    # Long tiles of a causal prompt first: the short ones fill the gaps at the end.
    tile = tl.program_id(0) if DECODE else tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    seq, first, count, start, num_keys = tokens_of(
        tile, cu_ptr, seq_lens_ptr, num_seqs, num_tokens, TOKENS, DECODE
    )
    if start >= count:
        return
    rows = tl.arange(0, ROWS)
    token = start + rows // GROUP
    head = kv_head * GROUP + rows % GROUP
    row_valid = (token < count) & (rows < TOKENS * GROUP)
    dims = tl.arange(0, PADDED_HEAD)
    elements = row_valid[:, None] & (dims < HEAD)[None, :]
    q_row = (first + token).to(tl.int64) * q_stride_token + head * q_stride_head
    q = tl.load(q_ptr + q_row[:, None] + dims[None, :], mask=elements, other=0.0)

    if HAS_SCALES:
        factor = factor * tl.load(k_scale_ptr)
    begin = num_keys - count + start
    low, clear_low, clear_high, high = key_range(
        begin, tl.minimum(TOKENS, count - start), num_keys, window, split, KEYS, SPLITS, CAUSAL,
        HAS_WINDOW,
    )  # fmt: skip
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    if HAS_SINKS and split == 0:
        top = tl.load(sinks_ptr + head, mask=row_valid, other=0.0).to(tl.float32) * LOG2_E
        total += 1.0
    result = tl.zeros([ROWS, PADDED_HEAD], tl.float32)
    position = num_keys - count + token
    for part in tl.static_range(0 if HAS_WINDOW else 1, 3):
        top, total, result = _attend_keys(
            q, top, total, result, low if part == 0 else clear_low if part == 1 else clear_high,
            clear_low if part == 0 else clear_high if part == 1 else high, position,
            table_ptr + seq.to(tl.int64) * table_stride, k_ptr, v_ptr,
            kv_head.to(tl.int64) * cache_stride_head, factor, soft_cap, window, high, max_blocks,
            num_blocks, cache_stride_block, cache_stride_slot, HEAD, PADDED_HEAD, PAGE, KEYS,
            CAUSAL, HAS_WINDOW, HAS_CAP, part != 1,
        )  # fmt: skip

    if HAS_SCALES:
        result = result * tl.load(v_scale_ptr)
    row = (first + token).to(tl.int64) * num_heads + head
    if SPLITS > 1:
        row = row * SPLITS + split
        tl.store(stats_ptr + row * 2, top, mask=row_valid)
        tl.store(stats_ptr + row * 2 + 1, total, mask=row_valid)
    else:
        result = result / tl.where(total == 0.0, 1.0, total)[:, None]
    where = out_ptr + row[:, None] * HEAD + dims[None, :]
    tl.store(where, result.to(out_ptr.dtype.element_ty), mask=elements)


@triton.jit
def merge_kernel(
    out_ptr,
    partial_ptr,
    stats_ptr,
    HEAD: tl.constexpr,
    PADDED_HEAD: tl.constexpr,
    SPLITS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """One row (token and head): the weighted mean of its parts."""
    if OVERLAPS:
        # The next kernel may load its weights while attention runs.
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    splits = tl.arange(0, SPLITS)
    dims = tl.arange(0, PADDED_HEAD)
    where = row * SPLITS + splits
    top = tl.load(stats_ptr + where * 2)
    total = tl.load(stats_ptr + where * 2 + 1)
    highest = tl.max(top, 0)
    base = tl.where(highest == float("-inf"), 0.0, highest)
    factor = tl.exp2(top - base)
    divisor = tl.sum(total * factor, 0)
    parts = tl.load(
        partial_ptr + where[:, None] * HEAD + dims[None, :], mask=(dims < HEAD)[None, :], other=0.0
    )
    result = tl.sum(parts * factor[:, None], 0) / tl.where(divisor == 0.0, 1.0, divisor)
    tl.store(out_ptr + row * HEAD + dims, result.to(out_ptr.dtype.element_ty), mask=dims < HEAD)
