# SPDX-License-Identifier: Apache-2.0
"""Multi-head latent attention in Triton: over latents in the cache, and over expanded heads.

`latent_kernel`: a program attends for a tile of (token, head) rows over one part of the sequence's
keys. All heads share the latents, so a tile of 64 heads reads each of them once, both for the
scores and, since they are the values too, for the sums. With few tiles the keys are split over more
programs, and `merge_kernel` of paged attention combines the results.

`expanded_kernel`: causal attention of one head's rows over keys in two parts (the head's own, and
the rotated one that all heads share) and values, which were expanded for this step.

Arguments that change from step to step are not specialised; see paged_attention_kernel.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rtp_llm.kernels.triton.attention.paged_attention_kernel import key_range, tokens_of

VARYING = ("num_seqs", "num_tokens", "max_blocks", "num_blocks", "table_stride")
UNALIGNED = ("cu_ptr", "seq_lens_ptr", "table_ptr", "starts_ptr")


@triton.jit
def _weigh(scores, seen, top, total, result, factor):
    """A step of the online softmax: this tile's weights, and the state rescaled to its maximum."""
    scores = tl.where(seen, scores * factor, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, 1))
    # A row that has seen no key yet has no maximum: its weights stay zero.
    base = tl.where(higher == float("-inf"), 0.0, higher)
    weights = tl.exp2(scores - base[:, None])
    keep = tl.exp2(top - base)
    return weights, higher, total * keep + tl.sum(weights, 1), result * keep[:, None]


@triton.jit(do_not_specialize=VARYING, do_not_specialize_on_alignment=UNALIGNED)
def latent_kernel(
    out_ptr, stats_ptr, q_ptr, cache_ptr, cu_ptr, seq_lens_ptr, table_ptr, factor, num_seqs,
    num_tokens, num_heads, max_blocks, num_blocks, q_stride_token, q_stride_head,
    cache_stride_block, cache_stride_slot, table_stride, LATENT: tl.constexpr, ROPE: tl.constexpr,
    PAGE: tl.constexpr, PADDED_LATENT: tl.constexpr, PADDED_ROPE: tl.constexpr,
    ROWS: tl.constexpr, GROUP: tl.constexpr, TOKENS: tl.constexpr, KEYS: tl.constexpr,
    SPLITS: tl.constexpr, DECODE: tl.constexpr,
):  # fmt: skip
    """Grid (tiles, groups of GROUP heads, SPLITS); a tile has ROWS >= TOKENS * GROUP rows.

    out is [T, H, R]; with SPLITS > 1 float32 [T, H, SPLITS, R], not yet divided by the sum, and
    stats float32 [T, H, SPLITS, 2] has each part's maximum (base 2) and sum. `factor` brings scores
    to base 2.
    """
    tile = tl.program_id(0) if DECODE else tl.num_programs(0) - 1 - tl.program_id(0)
    split = tl.program_id(2)
    seq, first, count, start, num_keys = tokens_of(
        tile, cu_ptr, seq_lens_ptr, num_seqs, num_tokens, TOKENS, DECODE
    )
    if start >= count:
        return
    rows = tl.arange(0, ROWS)
    token = start + rows // GROUP
    head = tl.program_id(1) * GROUP + rows % GROUP
    row_valid = (token < count) & (rows < TOKENS * GROUP) & (head < num_heads)
    latent_dims = tl.arange(0, PADDED_LATENT)
    rope_dims = tl.arange(0, PADDED_ROPE)
    q_row = q_ptr + (first + token).to(tl.int64) * q_stride_token + head * q_stride_head
    latents = row_valid[:, None] & (latent_dims < LATENT)[None, :]
    q = tl.load(q_row[:, None] + latent_dims[None, :], mask=latents, other=0.0)
    ropes = row_valid[:, None] & (rope_dims < ROPE)[None, :]
    q_rope = tl.load(q_row[:, None] + LATENT + rope_dims[None, :], mask=ropes, other=0.0)

    tokens = tl.minimum(TOKENS, count - start)
    low, _, _, high = key_range(
        num_keys - count + start, tokens, num_keys, 0, split, KEYS, SPLITS, True, False
    )
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    result = tl.zeros([ROWS, PADDED_LATENT], tl.float32)
    position = num_keys - count + token
    row_table = table_ptr + seq.to(tl.int64) * table_stride
    for key in range(low, high, KEYS):
        keys = key + tl.arange(0, KEYS)
        page = keys // PAGE
        block = tl.load(row_table + page, mask=(keys < high) & (page < max_blocks), other=-1)
        present = (block >= 0) & (block < num_blocks)
        slot = block.to(tl.int64) * cache_stride_block + (keys % PAGE) * cache_stride_slot
        place = cache_ptr + slot[:, None]
        latent_mask = present[:, None] & (latent_dims < LATENT)[None, :]
        latent = tl.load(place + latent_dims[None, :], mask=latent_mask, other=0.0)
        rope_mask = present[:, None] & (rope_dims < ROPE)[None, :]
        rope = tl.load(place + LATENT + rope_dims[None, :], mask=rope_mask, other=0.0)
        scores = tl.dot(q_rope, tl.trans(rope), input_precision="ieee")
        scores = tl.dot(q, tl.trans(latent), scores, input_precision="ieee")
        seen = present[None, :] & (keys[None, :] <= position[:, None])
        weights, top, total, result = _weigh(scores, seen, top, total, result, factor)
        result = tl.dot(weights.to(q.dtype), latent, result, input_precision="ieee")

    row = (first + token).to(tl.int64) * num_heads + head
    if SPLITS > 1:
        row = row * SPLITS + split
        tl.store(stats_ptr + row * 2, top, mask=row_valid)
        tl.store(stats_ptr + row * 2 + 1, total, mask=row_valid)
    else:
        result = result / tl.where(total == 0.0, 1.0, total)[:, None]
    where = out_ptr + row[:, None] * LATENT + latent_dims[None, :]
    tl.store(where, result.to(out_ptr.dtype.element_ty), mask=latents)


@triton.jit(do_not_specialize=VARYING, do_not_specialize_on_alignment=UNALIGNED)
def expanded_kernel(
    out_ptr, q_ptr, shared_ptr, expanded_ptr, cu_ptr, seq_lens_ptr, starts_ptr, factor, num_seqs,
    num_tokens, num_heads, q_stride_token, q_stride_head, shared_stride, expanded_stride,
    NOPE: tl.constexpr, ROPE: tl.constexpr, VALUE: tl.constexpr, PADDED_NOPE: tl.constexpr,
    PADDED_ROPE: tl.constexpr, PADDED_VALUE: tl.constexpr, TOKENS: tl.constexpr,
    KEYS: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of TOKENS tokens, heads); out [T, h, Dv]. See rtp_llm.attention.mla."""
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    seq, first, count, start, num_keys = tokens_of(
        tile, cu_ptr, seq_lens_ptr, num_seqs, num_tokens, TOKENS, False
    )
    if start >= count:
        return
    token = start + tl.arange(0, TOKENS)
    row_valid = token < count
    nope_dims = tl.arange(0, PADDED_NOPE)
    rope_dims = tl.arange(0, PADDED_ROPE)
    value_dims = tl.arange(0, PADDED_VALUE)
    q_row = q_ptr + (first + token).to(tl.int64) * q_stride_token + head * q_stride_head
    elements = row_valid[:, None] & (nope_dims < NOPE)[None, :]
    q = tl.load(q_row[:, None] + nope_dims[None, :], mask=elements, other=0.0)
    ropes = row_valid[:, None] & (rope_dims < ROPE)[None, :]
    q_rope = tl.load(q_row[:, None] + NOPE + rope_dims[None, :], mask=ropes, other=0.0)

    begin = num_keys - count + start
    position = num_keys - count + token
    low, _, _, high = key_range(
        begin, tl.minimum(TOKENS, count - start), num_keys, 0, 0, KEYS, 1, True, False
    )
    top = tl.full([TOKENS], float("-inf"), tl.float32)
    total = tl.zeros([TOKENS], tl.float32)
    result = tl.zeros([TOKENS, PADDED_VALUE], tl.float32)
    start_row = tl.load(starts_ptr + seq, mask=seq < num_seqs, other=0).to(tl.int64)
    for key in range(low, high, KEYS):
        keys = key + tl.arange(0, KEYS)
        present = keys < high
        row = start_row + keys
        own = expanded_ptr + row[:, None] * expanded_stride + head * (NOPE + VALUE)
        own_mask = present[:, None] & (nope_dims < NOPE)[None, :]
        nope = tl.load(own + nope_dims[None, :], mask=own_mask, other=0.0)
        shared_mask = present[:, None] & (rope_dims < ROPE)[None, :]
        shared = shared_ptr + row[:, None] * shared_stride + rope_dims[None, :]
        rope = tl.load(shared, mask=shared_mask, other=0.0)
        scores = tl.dot(q_rope, tl.trans(rope), input_precision="ieee")
        scores = tl.dot(q, tl.trans(nope), scores, input_precision="ieee")
        seen = present[None, :] & (keys[None, :] <= position[:, None])
        weights, top, total, result = _weigh(scores, seen, top, total, result, factor)
        value_mask = present[:, None] & (value_dims < VALUE)[None, :]
        value = tl.load(own + NOPE + value_dims[None, :], mask=value_mask, other=0.0)
        result = tl.dot(weights.to(q.dtype), value, result, input_precision="ieee")

    result = result / tl.where(total == 0.0, 1.0, total)[:, None]
    where = out_ptr + ((first + token).to(tl.int64) * num_heads + head)[:, None] * VALUE
    results = row_valid[:, None] & (value_dims < VALUE)[None, :]
    tl.store(where + value_dims[None, :], result.to(out_ptr.dtype.element_ty), mask=results)
