# SPDX-License-Identifier: Apache-2.0
"""The gated delta rule over prompts in Triton: the chunked form, two kernels.

With G the running sum of the gates g inside a chunk of CHUNK tokens, and A the strictly lower part
of (beta_i k_i.k_j e^(G_i - G_j)), what the chunk's tokens do to S is

    u = U - W S                         T = (I + A)^-1 diag(beta), U = T v, W = T e^G k
    result = e^G q S + P u              P = q_i.k_j e^(G_i - G_j), lower
    S = e^G_last S + (e^(G_last - G) k)^T u

`prepare_kernel` computes W, U and P (the WY representation) and row factors for all chunks at once;
`advance_kernel` iterates over the chunks of a sequence with some columns of S in registers, with
two dependent products per chunk. The lengths of keys and queries are folded into the factors, so
that products use them as stored. Products of 16-bit numbers accumulate in float32; PRECISION
selects how float32 numbers are multiplied.

I + A is inverted by blocks of doubling size, with products of whole tiles. The entries of the
inverse and of every intermediate product are at most 1, since a token's update I - beta k k^T does
not lengthen any vector: float16 represents them with as many bits as TF32.

Scratch memory has a tile of CHUNK rows for each chunk and value head, which is fully written even
past a sequence's end. W, U and P are indexed by [tile, head]. TRANSPOSED: S^T is the left operand,
in registers, and U^T is stored instead of U.

Sources: Gated Delta Networks (Yang et al., 2024), whose chunked form FLA has too.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rtp_llm.kernels.triton.attention.paged_attention_kernel import find_sequence

CHUNK = tl.constexpr(64)
VARYING = ("num_seqs", "num_blocks", "shortest")
UNALIGNED = ("cu_ptr", "seq_lens_ptr", "read_ptr", "write_ptr")


@triton.jit
def _gates(ba_ptr, a_log, dt_bias, rows, end, ba_stride, heads, head):
    """g and beta of token rows; 0 past the end."""
    row = ba_ptr + rows.to(tl.int64) * ba_stride + head
    inside = rows < end
    b = tl.load(row, mask=inside, other=0.0).to(tl.float32)
    x = tl.load(row + heads, mask=inside, other=0.0).to(tl.float32) + dt_bias
    small = tl.exp(-tl.abs(x))
    # log1p(small), which loses nothing where 1 + small is rounded to 1
    rounded = 1.0 + small
    tail = tl.where(rounded == 1.0, small, tl.log(rounded) * (small / (rounded - 1.0)))
    g = -tl.exp(a_log) * (tl.maximum(x, 0.0) + tail)
    beta = 1.0 / (1.0 + tl.exp(-b))
    return tl.where(inside, g, 0.0), tl.where(inside, beta, 0.0)


@triton.jit
def _vectors(ptr, rows, end, stride, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """[rows, PADDED] of vectors that are `stride` apart; zeros past the end."""
    dims = tl.arange(0, PADDED)
    mask = (rows < end)[:, None]
    if PADDED != SIZE:
        mask = mask & (dims < SIZE)[None, :]
    return tl.load(ptr + rows.to(tl.int64)[:, None] * stride + dims[None, :], mask=mask, other=0.0)


@triton.jit
def _inverse_length(x):
    wide = x.to(tl.float32)
    return tl.rsqrt(tl.sum(wide * wide, 1) + 1e-6)


@triton.jit
def _put(ptr, x, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRIDE: tl.constexpr):
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    tl.store(ptr + rows[:, None] * STRIDE + columns[None, :], x.to(ptr.dtype.element_ty))


@triton.jit
def _find_chunk(cu_ptr, num_seqs, shortest):
    """Rows [begin, end) from this program's chunk to the end of its sequence; may be empty."""
    tile = tl.program_id(0)
    seq = find_sequence(cu_ptr, num_seqs, tile, CHUNK)
    first = tl.load(cu_ptr + seq)
    end = tl.load(cu_ptr + seq + 1, mask=seq < num_seqs, other=0)
    begin = first + (tile - (first // CHUNK + seq)) * CHUNK
    end = tl.where(end - first < shortest, begin, end)
    return begin, end


@triton.jit
def _double(x, a, size, i, j, PRECISION: tl.constexpr):
    """Inverses of the diagonal blocks of 2 * size rows, from `x`, the inverses for size rows."""
    below = (i // (2 * size) == j // (2 * size)) & ((i // size) % 2 == 1) & ((j // size) % 2 == 0)
    part = tl.where(below, a, 0.0).to(x.dtype)
    part = tl.dot(part, x, input_precision=PRECISION).to(x.dtype)
    return (x.to(tl.float32) - tl.dot(x, part, input_precision=PRECISION)).to(x.dtype)


@triton.jit
def _inverse(a, i, j, HALF: tl.constexpr, PRECISION: tl.constexpr):
    """(I + a)^-1 of a strictly lower `a` [CHUNK, CHUNK], in float16 (HALF) or float32."""
    x = tl.where(i == j, 1.0, 0.0) - tl.where(i // 2 == j // 2, a, 0.0)
    if HALF:
        x = x.to(tl.float16)
        x = _double(x, a, 2, i, j, PRECISION)
        x = _double(x, a, 4, i, j, PRECISION)
        x = _double(x, a, 8, i, j, PRECISION)
        x = _double(x, a, 16, i, j, PRECISION)
        x = _double(x, a, 32, i, j, PRECISION)
    else:  # a loop: products in three parts take long to compile
        for level in tl.range(1, 6, num_stages=1):
            x = _double(x, a, tl.full([], 1, tl.int32) << level, i, j, PRECISION)
    return x


@triton.jit(do_not_specialize=VARYING, do_not_specialize_on_alignment=UNALIGNED)
def prepare_kernel(
    w_ptr, u_ptr, scores_ptr, factors_ptr, decays_ptr, qkv_ptr, ba_ptr, a_log_ptr, dt_bias_ptr,
    cu_ptr, num_seqs, shortest, qkv_stride, ba_stride, KEY_HEADS: tl.constexpr,
    HEADS: tl.constexpr, KEY: tl.constexpr, PADDED_KEY: tl.constexpr, VALUE: tl.constexpr,
    VALUES: tl.constexpr, PADDED_VALUE: tl.constexpr, TRANSPOSED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (tiles, value heads), VALUES elements of a head at a time.

    -W [tiles, Hv, CHUNK, PADDED_KEY], U [tiles, Hv, CHUNK, PADDED_VALUE] or U^T, P [tiles, Hv,
    CHUNK, CHUNK]; float32 factors of q S and of u in the new state [tiles, Hv, 2, CHUNK], and
    decays of S [tiles, Hv].
    """
    head = tl.program_id(1)
    begin, end = _find_chunk(cu_ptr, num_seqs, shortest)
    if begin >= end:
        return
    q_ptr = qkv_ptr + head // (HEADS // KEY_HEADS) * KEY
    k_ptr = q_ptr + KEY_HEADS * KEY
    v_ptr = qkv_ptr + 2 * KEY_HEADS * KEY + head * VALUE
    places = tl.arange(0, CHUNK)
    rows = begin + places
    i = places[:, None]
    j = places[None, :]
    k = _vectors(k_ptr, rows, end, qkv_stride, KEY, PADDED_KEY)
    q = _vectors(q_ptr, rows, end, qkv_stride, KEY, PADDED_KEY)
    v = _vectors(v_ptr, rows, end, qkv_stride, VALUE, VALUES)  # asked for before it is needed
    a_log = tl.load(a_log_ptr + head)
    dt_bias = tl.load(dt_bias_ptr + head)
    g, beta = _gates(ba_ptr, a_log, dt_bias, rows, end, ba_stride, HEADS, head)
    sums = tl.cumsum(g, 0)
    last = tl.sum(g, 0)
    of_query = _inverse_length(q) * (KEY**-0.5)
    of_key = _inverse_length(k)
    at = tl.program_id(0).to(tl.int64) * HEADS + head
    tl.store(decays_ptr + at, tl.exp(last))
    tl.store(factors_ptr + at * 2 * CHUNK + places, of_query * tl.exp(sums))
    tl.store(factors_ptr + at * 2 * CHUNK + CHUNK + places, of_key * tl.exp(last - sums))

    products = tl.dot(k, tl.trans(k), input_precision=PRECISION)
    products *= of_key[:, None] * of_key[None, :]
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    scores *= of_query[:, None] * of_key[None, :]
    decay = tl.exp(tl.where(i >= j, sums[:, None] - sums[None, :], 0.0))
    scores = tl.where(i >= j, scores * decay, 0.0)
    _put(scores_ptr + at * CHUNK * CHUNK, scores, CHUNK, CHUNK, CHUNK)
    a = tl.where(i > j, products * decay * beta[:, None], 0.0)
    inverse = _inverse(a, i, j, k.dtype != tl.float32, PRECISION)
    inverse = inverse.to(tl.float32) * beta[None, :]
    of_keys = inverse * (of_key * tl.exp(sums))[None, :]
    w = tl.dot(of_keys.to(k.dtype), k, input_precision=PRECISION)
    _put(w_ptr + at * CHUNK * PADDED_KEY, -w, CHUNK, PADDED_KEY, PADDED_KEY)
    u_ptr += at * CHUNK * PADDED_VALUE
    for first in tl.static_range(0, VALUE, VALUES):
        if first > 0:
            v = _vectors(v_ptr + first, rows, end, qkv_stride, VALUE - first, VALUES)
        u = tl.dot(inverse.to(k.dtype), v, input_precision=PRECISION)
        if TRANSPOSED:
            _put(u_ptr + first * CHUNK, tl.trans(u), VALUES, CHUNK, CHUNK)
        else:
            _put(u_ptr + first, u, CHUNK, VALUES, PADDED_VALUE)


@triton.jit
def _replay(
    s, ring_k, ring_u, ring_g, folded, begin, dims, columns, RING: tl.constexpr,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr,
):  # fmt: skip
    """S as of `begin`, from S as of `folded` and the ring; the pointers are those of the head."""
    oldest = tl.maximum(begin - RING // 2, 0)
    for position in range(tl.maximum(tl.minimum(folded, begin), oldest), begin):
        row = position % RING
        k = tl.load(ring_k + row * (KEY_HEADS * KEY) + dims, mask=dims < KEY, other=0.0)
        k = k.to(tl.float32)
        k = k * tl.rsqrt(tl.sum(k * k, 0) + 1e-6)
        u = tl.load(ring_u + row * (HEADS * VALUE) + columns, mask=columns < VALUE, other=0.0)
        s = tl.exp(tl.load(ring_g + row * HEADS)) * s + k[:, None] * u[None, :]
    return s


@triton.jit
def _read_state(
    state_ptr, ring_k_ptr, ring_u_ptr, ring_g_ptr, folded_ptr, read, begin, num_blocks,
    state_stride, ring_k_stride, ring_u_stride, ring_g_stride, folded_stride, head, dims, columns,
    RING: tl.constexpr, KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, KEY: tl.constexpr,
    PADDED_KEY: tl.constexpr, VALUE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """S [PADDED_KEY, COLUMNS] of block `read` as of token `begin`; zeros where there is none."""
    inside = (dims < KEY)[:, None] & (columns < VALUE)[None, :]
    s = tl.zeros([PADDED_KEY, COLUMNS], tl.float32)
    if (read >= 0) & (read < num_blocks):
        at = (head * VALUE + columns)[None, :] * KEY + dims[:, None]
        s = tl.load(state_ptr + read * state_stride + at, mask=inside, other=0.0).to(tl.float32)
        piece_at = head * (VALUE // 8) + tl.program_id(0) * (COLUMNS // 8)
        s = _replay(
            s, ring_k_ptr + read * ring_k_stride + head // (HEADS // KEY_HEADS) * KEY,
            ring_u_ptr + read * ring_u_stride + head * VALUE,
            ring_g_ptr + read * ring_g_stride + head,
            tl.load(folded_ptr + read * folded_stride + piece_at), begin, dims, columns, RING,
            KEY_HEADS, HEADS, KEY, VALUE,
        )  # fmt: skip
    return s


@triton.jit
def _write_state(
    s, state_ptr, folded_ptr, write, length, num_blocks, state_stride, folded_stride, head, dims,
    columns, KEY: tl.constexpr, VALUE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write S as of `length` tokens to block `write`, if that is a valid block."""
    if (write >= 0) & (write < num_blocks):
        inside = (dims < KEY)[:, None] & (columns < VALUE)[None, :]
        at = (head * VALUE + columns)[None, :] * KEY + dims[:, None]
        kept = s.to(state_ptr.dtype.element_ty)
        tl.store(state_ptr + write * state_stride + at, kept, mask=inside)
        tiles = tl.program_id(0) * (COLUMNS // 8) + tl.arange(0, COLUMNS // 8)
        counts = tl.zeros([COLUMNS // 8], tl.int32) + length
        # Every warp has read its count of the tokens folded so far before one of them writes it.
        tl.debug_barrier()
        to = folded_ptr + write * folded_stride + head * (VALUE // 8) + tiles
        tl.store(to, counts, mask=tiles < VALUE // 8)


@triton.jit(do_not_specialize=VARYING, do_not_specialize_on_alignment=UNALIGNED)
def advance_kernel(
    out_ptr, qkv_ptr, w_ptr, u_ptr, scores_ptr, factors_ptr, decays_ptr, state_ptr, ring_k_ptr,
    ring_u_ptr, ring_g_ptr, folded_ptr, cu_ptr, seq_lens_ptr, read_ptr, write_ptr, num_blocks,
    shortest, qkv_stride, state_stride, ring_k_stride, ring_u_stride, ring_g_stride, folded_stride,
    RING: tl.constexpr, KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, KEY: tl.constexpr,
    PADDED_KEY: tl.constexpr, VALUE: tl.constexpr, PADDED_VALUE: tl.constexpr,
    COLUMNS: tl.constexpr, STAGES: tl.constexpr, TRANSPOSED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of COLUMNS values, value heads, sequences); out [T, Hv, Dv]."""
    head = tl.program_id(1)
    seq = tl.program_id(2)
    first = tl.load(cu_ptr + seq)
    end = tl.load(cu_ptr + seq + 1)
    if end - first < shortest:
        return
    length = tl.load(seq_lens_ptr + seq)
    read = tl.load(read_ptr + seq).to(tl.int64)
    write = tl.load(write_ptr + seq).to(tl.int64)
    key_head = head // (HEADS // KEY_HEADS)
    dims = tl.arange(0, PADDED_KEY)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    s = _read_state(
        state_ptr, ring_k_ptr, ring_u_ptr, ring_g_ptr, folded_ptr, read, length - (end - first),
        num_blocks, state_stride, ring_k_stride, ring_u_stride, ring_g_stride, folded_stride, head,
        dims, columns, RING, KEY_HEADS, HEADS, KEY, PADDED_KEY, VALUE, COLUMNS,
    )  # fmt: skip
    if TRANSPOSED:
        s = tl.trans(s)

    places = tl.arange(0, CHUNK)
    q_ptr = qkv_ptr + key_head * KEY
    k_ptr = q_ptr + KEY_HEADS * KEY
    at = (first // CHUNK + seq).to(tl.int64) * HEADS + head
    w_ptr += at * CHUNK * PADDED_KEY + places[:, None] * PADDED_KEY + dims[None, :]
    scores_ptr += at * CHUNK * CHUNK + places[:, None] * CHUNK + places[None, :]
    factors_ptr += at * 2 * CHUNK + places
    decays_ptr += at
    u_ptr += at * CHUNK * PADDED_VALUE
    if TRANSPOSED:
        u_ptr += columns[:, None] * CHUNK + places[None, :]
    else:
        u_ptr += places[:, None] * PADDED_VALUE + columns[None, :]
    for chunk in tl.range(0, tl.cdiv(end - first, CHUNK), num_stages=STAGES):
        rows = first + chunk * CHUNK + places
        step = tl.cast(chunk, tl.int64) * HEADS
        w = tl.load(w_ptr + step * (CHUNK * PADDED_KEY))
        u = tl.load(u_ptr + step * (CHUNK * PADDED_VALUE)).to(tl.float32)
        k = _vectors(k_ptr, rows, end, qkv_stride, KEY, PADDED_KEY)
        q = _vectors(q_ptr, rows, end, qkv_stride, KEY, PADDED_KEY)
        scores = tl.load(scores_ptr + step * (CHUNK * CHUNK))
        of_queries = tl.load(factors_ptr + step * (2 * CHUNK))
        of_updates = tl.load(factors_ptr + step * (2 * CHUNK) + CHUNK)
        decay = tl.load(decays_ptr + step)
        stored = s.to(w.dtype)
        if TRANSPOSED:
            u = tl.dot(stored, tl.trans(w), u, input_precision=PRECISION)
            result = tl.dot(stored, tl.trans(q), input_precision=PRECISION) * of_queries[None, :]
            update = (u * of_updates[None, :]).to(w.dtype)
            s = tl.dot(update, k, s * decay, input_precision=PRECISION)
            result = tl.dot(u.to(w.dtype), tl.trans(scores), result, input_precision=PRECISION)
            result = tl.trans(result)
        else:
            u = tl.dot(w, stored, u, input_precision=PRECISION)
            result = tl.dot(q, stored, input_precision=PRECISION) * of_queries[:, None]
            update = (u * of_updates[:, None]).to(w.dtype)
            s = tl.dot(tl.trans(k), update, s * decay, input_precision=PRECISION)
            result = tl.dot(scores, u.to(w.dtype), result, input_precision=PRECISION)
        taken = (rows < end)[:, None]
        if VALUE % COLUMNS != 0:
            taken = taken & (columns < VALUE)[None, :]
        to = out_ptr + (rows.to(tl.int64)[:, None] * HEADS + head) * VALUE + columns[None, :]
        tl.store(to, result.to(out_ptr.dtype.element_ty), mask=taken)

    if TRANSPOSED:
        s = tl.trans(s)
    _write_state(
        s, state_ptr, folded_ptr, write, length, num_blocks, state_stride, folded_stride, head,
        dims, columns, KEY, VALUE, COLUMNS,
    )  # fmt: skip
