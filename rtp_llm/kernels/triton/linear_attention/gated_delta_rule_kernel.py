"""The gated delta rule over prompts in Triton: the chunked form, three kernels.

With G the running sum of the gates g inside a chunk of CHUNK tokens, and A the strictly lower part
of (beta_i k_i.k_j e^(G_i - G_j)), what the chunk's tokens do to S is

    u = T (v - e^G k S)                 T = (I + A)^-1 diag(beta)
    result = e^G q S + P u              P = q_i.k_j e^(G_i - G_j), lower
    S = e^G_last S + (e^(G_last - G) k)^T u

`invert_kernel` makes T, `score_kernel` P and factors of rows, for all chunks at once;
`advance_kernel` goes through the chunks of a sequence, with some columns of S in registers. Lengths
of keys and queries are put into the factors, so that products take them as they are stored.
Products of 16-bit numbers have float32 sums; PRECISION says how those of float32 numbers are made.

Sources: Gated Delta Networks (Yang et al., 2024); the inverse by blocks of 16 as in FLA.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rtp_llm.kernels.triton.attention.paged_attention_kernel import find_sequence

CHUNK = tl.constexpr(64)
_BLOCK = tl.constexpr(16)
VARYING = ("num_seqs", "num_tokens", "num_blocks", "shortest")
UNALIGNED = ("cu_ptr", "seq_lens_ptr", "read_ptr", "write_ptr")


@triton.jit
def _gates(ba_ptr, a_log, dt_bias, rows, end, ba_stride, heads, head):
    """g and beta of token rows; 0 behind the end."""
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
    """[rows, PADDED] of vectors that are `stride` apart; zeros behind the end."""
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
def _coupling(
    k_i, k_j, scale_i, scale_j, sum_i, sum_j, DIAGONAL: tl.constexpr, PRECISION: tl.constexpr
):
    """Block (i, j) of A. The scales are beta / |k| and 1 / |k|, the sums those of the gates."""
    products = tl.dot(k_i, tl.trans(k_j), input_precision=PRECISION)
    differences = sum_i[:, None] - sum_j[None, :]
    if DIAGONAL:
        at = tl.arange(0, _BLOCK)
        lower = at[:, None] > at[None, :]
        products = tl.where(lower, products, 0.0)
        differences = tl.where(lower, differences, 0.0)
    return products * scale_i[:, None] * scale_j[None, :] * tl.exp(differences)


@triton.jit
def _invert_row(inverse, i):
    at = tl.arange(0, _BLOCK)
    row = tl.sum(tl.where((at == i)[:, None], inverse, 0.0), 0)
    row += tl.sum(row[:, None] * inverse, 0)
    return tl.where((at == i)[:, None], row[None, :], inverse)


@triton.jit
def _invert(a_0, a_1, a_2, a_3):
    """(I + a)^-1 of strictly lower blocks, row by row, side by side."""
    at = tl.arange(0, _BLOCK)
    one = tl.where(at[:, None] == at[None, :], 1.0, 0.0)
    x_0 = -a_0
    x_1 = -a_1
    x_2 = -a_2
    x_3 = -a_3
    for i in range(2, _BLOCK):
        x_0 = _invert_row(x_0, i)
        x_1 = _invert_row(x_1, i)
        x_2 = _invert_row(x_2, i)
        x_3 = _invert_row(x_3, i)
    return x_0 + one, x_1 + one, x_2 + one, x_3 + one


@triton.jit
def _times(a, b, SOLVE: tl.constexpr):
    return tl.dot(a, b, input_precision=SOLVE)


@triton.jit
def _put_block(to, i: tl.constexpr, j: tl.constexpr, block, beta, rows_left):
    rows = i * _BLOCK + tl.arange(0, _BLOCK)
    columns = j * _BLOCK + tl.arange(0, _BLOCK)
    block = (block * beta[None, :]).to(to.dtype.element_ty)
    tl.store(to + rows[:, None] * CHUNK + columns[None, :], block, mask=(rows < rows_left)[:, None])


@triton.jit
def _put_factors(to, plane, rows, end, of_keys, of_queries, of_updates, all_gates):
    """Four planes: of k S and q S, of u in the new state, and of S (in the chunk's first row)."""
    inside = rows < end
    tl.store(to + rows, of_keys, mask=inside)
    tl.store(to + plane + rows, of_queries, mask=inside)
    tl.store(to + 2 * plane + rows, of_updates, mask=inside)
    tl.store(to + 3 * plane + rows, tl.exp(all_gates), mask=inside)


@triton.jit
def _find_chunk(cu_ptr, num_seqs, shortest):
    """Rows [begin, end) of this program's chunk and those behind it of its sequence, or none."""
    tile = tl.program_id(0)
    seq = find_sequence(cu_ptr, num_seqs, tile, CHUNK)
    first = tl.load(cu_ptr + seq)
    end = tl.load(cu_ptr + seq + 1, mask=seq < num_seqs, other=0)
    begin = first + (tile - (first // CHUNK + seq)) * CHUNK
    end = tl.where(end - first < shortest, begin, end)
    return begin, end


@triton.jit(do_not_specialize=VARYING, do_not_specialize_on_alignment=UNALIGNED)
def invert_kernel(
    inverse_ptr, qkv_ptr, ba_ptr, a_log_ptr, dt_bias_ptr, cu_ptr, num_seqs, num_tokens, shortest,
    qkv_stride, ba_stride, KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, KEY: tl.constexpr,
    PADDED_KEY: tl.constexpr, PRECISION: tl.constexpr, SOLVE: tl.constexpr,
):  # fmt: skip
    """Grid (tiles, value heads): T [Hv, T, CHUNK]. SOLVE: how float32 blocks are multiplied."""
    head = tl.program_id(1)
    begin, end = _find_chunk(cu_ptr, num_seqs, shortest)
    if begin >= end:
        return
    a_log = tl.load(a_log_ptr + head)
    dt_bias = tl.load(dt_bias_ptr + head)
    k_ptr = qkv_ptr + (KEY_HEADS + head // (HEADS // KEY_HEADS)) * KEY
    at = tl.arange(0, _BLOCK)
    rows_0 = begin + at
    rows_1 = rows_0 + _BLOCK
    rows_2 = rows_1 + _BLOCK
    rows_3 = rows_2 + _BLOCK
    g_0, beta_0 = _gates(ba_ptr, a_log, dt_bias, rows_0, end, ba_stride, HEADS, head)
    g_1, beta_1 = _gates(ba_ptr, a_log, dt_bias, rows_1, end, ba_stride, HEADS, head)
    g_2, beta_2 = _gates(ba_ptr, a_log, dt_bias, rows_2, end, ba_stride, HEADS, head)
    g_3, beta_3 = _gates(ba_ptr, a_log, dt_bias, rows_3, end, ba_stride, HEADS, head)
    sum_0 = tl.cumsum(g_0, 0)
    sum_1 = tl.cumsum(g_1, 0) + tl.sum(g_0, 0)
    sum_2 = tl.cumsum(g_2, 0) + tl.sum(g_0 + g_1, 0)
    sum_3 = tl.cumsum(g_3, 0) + tl.sum(g_0 + g_1 + g_2, 0)
    k_0 = _vectors(k_ptr, rows_0, end, qkv_stride, KEY, PADDED_KEY)
    k_1 = _vectors(k_ptr, rows_1, end, qkv_stride, KEY, PADDED_KEY)
    k_2 = _vectors(k_ptr, rows_2, end, qkv_stride, KEY, PADDED_KEY)
    k_3 = _vectors(k_ptr, rows_3, end, qkv_stride, KEY, PADDED_KEY)
    l_0 = _inverse_length(k_0)
    l_1 = _inverse_length(k_1)
    l_2 = _inverse_length(k_2)
    l_3 = _inverse_length(k_3)
    a_00 = _coupling(k_0, k_0, beta_0 * l_0, l_0, sum_0, sum_0, True, PRECISION)
    a_11 = _coupling(k_1, k_1, beta_1 * l_1, l_1, sum_1, sum_1, True, PRECISION)
    a_22 = _coupling(k_2, k_2, beta_2 * l_2, l_2, sum_2, sum_2, True, PRECISION)
    a_33 = _coupling(k_3, k_3, beta_3 * l_3, l_3, sum_3, sum_3, True, PRECISION)
    x_00, x_11, x_22, x_33 = _invert(a_00, a_11, a_22, a_33)
    a_10 = _coupling(k_1, k_0, beta_1 * l_1, l_0, sum_1, sum_0, False, PRECISION)
    a_20 = _coupling(k_2, k_0, beta_2 * l_2, l_0, sum_2, sum_0, False, PRECISION)
    a_21 = _coupling(k_2, k_1, beta_2 * l_2, l_1, sum_2, sum_1, False, PRECISION)
    a_30 = _coupling(k_3, k_0, beta_3 * l_3, l_0, sum_3, sum_0, False, PRECISION)
    a_31 = _coupling(k_3, k_1, beta_3 * l_3, l_1, sum_3, sum_1, False, PRECISION)
    a_32 = _coupling(k_3, k_2, beta_3 * l_3, l_2, sum_3, sum_2, False, PRECISION)
    x_10 = -_times(x_11, _times(a_10, x_00, SOLVE), SOLVE)
    x_21 = -_times(x_22, _times(a_21, x_11, SOLVE), SOLVE)
    x_32 = -_times(x_33, _times(a_32, x_22, SOLVE), SOLVE)
    y_20 = _times(a_20, x_00, SOLVE) + _times(a_21, x_10, SOLVE)
    x_20 = -_times(x_22, y_20, SOLVE)
    y_31 = _times(a_31, x_11, SOLVE) + _times(a_32, x_21, SOLVE)
    x_31 = -_times(x_33, y_31, SOLVE)
    y_30 = _times(a_30, x_00, SOLVE) + _times(a_31, x_10, SOLVE) + _times(a_32, x_20, SOLVE)
    x_30 = -_times(x_33, y_30, SOLVE)
    inverse = inverse_ptr + (head.to(tl.int64) * num_tokens + begin) * CHUNK
    left = end - begin
    none = tl.zeros([_BLOCK, _BLOCK], tl.float32)
    _put_block(inverse, 0, 0, x_00, beta_0, left)
    _put_block(inverse, 0, 1, none, beta_1, left)
    _put_block(inverse, 0, 2, none, beta_2, left)
    _put_block(inverse, 0, 3, none, beta_3, left)
    _put_block(inverse, 1, 0, x_10, beta_0, left)
    _put_block(inverse, 1, 1, x_11, beta_1, left)
    _put_block(inverse, 1, 2, none, beta_2, left)
    _put_block(inverse, 1, 3, none, beta_3, left)
    _put_block(inverse, 2, 0, x_20, beta_0, left)
    _put_block(inverse, 2, 1, x_21, beta_1, left)
    _put_block(inverse, 2, 2, x_22, beta_2, left)
    _put_block(inverse, 2, 3, none, beta_3, left)
    _put_block(inverse, 3, 0, x_30, beta_0, left)
    _put_block(inverse, 3, 1, x_31, beta_1, left)
    _put_block(inverse, 3, 2, x_32, beta_2, left)
    _put_block(inverse, 3, 3, x_33, beta_3, left)


@triton.jit(do_not_specialize=VARYING, do_not_specialize_on_alignment=UNALIGNED)
def score_kernel(
    scores_ptr, factors_ptr, qkv_ptr, ba_ptr, a_log_ptr, dt_bias_ptr, cu_ptr, num_seqs, num_tokens,
    shortest, qkv_stride, ba_stride, KEY_HEADS: tl.constexpr, HEADS: tl.constexpr,
    KEY: tl.constexpr, PADDED_KEY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (tiles, value heads): P [Hv, T, CHUNK], factors float32 [Hv, 4, T]."""
    head = tl.program_id(1)
    begin, end = _find_chunk(cu_ptr, num_seqs, shortest)
    if begin >= end:
        return
    a_log = tl.load(a_log_ptr + head)
    dt_bias = tl.load(dt_bias_ptr + head)
    q_ptr = qkv_ptr + head // (HEADS // KEY_HEADS) * KEY
    k_ptr = q_ptr + KEY_HEADS * KEY
    places = tl.arange(0, CHUNK)
    rows = begin + places
    g, _ = _gates(ba_ptr, a_log, dt_bias, rows, end, ba_stride, HEADS, head)
    sums = tl.cumsum(g, 0)
    last = tl.sum(g, 0)
    q = _vectors(q_ptr, rows, end, qkv_stride, KEY, PADDED_KEY)
    k = _vectors(k_ptr, rows, end, qkv_stride, KEY, PADDED_KEY)
    of_query = _inverse_length(q) * (KEY**-0.5)
    of_key = _inverse_length(k)
    lower = places[:, None] >= places[None, :]
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    scores *= tl.exp(tl.where(lower, sums[:, None] - sums[None, :], 0.0))
    scores = tl.where(lower, scores * of_query[:, None] * of_key[None, :], 0.0)
    to = scores_ptr + (head.to(tl.int64) * num_tokens + begin) * CHUNK
    to += places[:, None] * CHUNK + places[None, :]
    tl.store(to, scores.to(scores_ptr.dtype.element_ty), mask=(rows < end)[:, None])
    decays = tl.exp(sums)
    _put_factors(
        factors_ptr + head.to(tl.int64) * 4 * num_tokens, num_tokens, rows, end, of_key * decays,
        of_query * decays, of_key * tl.exp(last - sums), last,
    )  # fmt: skip


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


@triton.jit(do_not_specialize=VARYING, do_not_specialize_on_alignment=UNALIGNED)
def advance_kernel(
    out_ptr, qkv_ptr, inverse_ptr, scores_ptr, factors_ptr, state_ptr, ring_k_ptr, ring_u_ptr,
    ring_g_ptr, folded_ptr, cu_ptr, seq_lens_ptr, read_ptr, write_ptr, num_tokens, num_blocks,
    shortest, qkv_stride, state_stride, ring_k_stride, ring_u_stride, ring_g_stride, folded_stride,
    RING: tl.constexpr, KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, KEY: tl.constexpr,
    VALUE: tl.constexpr, PADDED_KEY: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
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
    inside = (dims < KEY)[:, None] & (columns < VALUE)[None, :]
    state_at = (head * VALUE + columns)[None, :] * KEY + dims[:, None]
    pieces = tl.program_id(0) * (COLUMNS // 8) + tl.arange(0, COLUMNS // 8)
    pieces_at = head * (VALUE // 8) + pieces
    s = tl.zeros([PADDED_KEY, COLUMNS], tl.float32)
    if (read >= 0) & (read < num_blocks):
        s = tl.load(state_ptr + read * state_stride + state_at, mask=inside, other=0.0)
        s = s.to(tl.float32)
        piece_at = head * (VALUE // 8) + tl.program_id(0) * (COLUMNS // 8)
        s = _replay(
            s, ring_k_ptr + read * ring_k_stride + key_head * KEY,
            ring_u_ptr + read * ring_u_stride + head * VALUE,
            ring_g_ptr + read * ring_g_stride + head,
            tl.load(folded_ptr + read * folded_stride + piece_at), length - (end - first), dims,
            columns, RING, KEY_HEADS, HEADS, KEY, VALUE,
        )  # fmt: skip

    places = tl.arange(0, CHUNK)
    q_ptr = qkv_ptr + key_head * KEY
    k_ptr = q_ptr + KEY_HEADS * KEY
    v_ptr = qkv_ptr + 2 * KEY_HEADS * KEY + head * VALUE
    matrices = head.to(tl.int64) * num_tokens * CHUNK
    factors_ptr += head.to(tl.int64) * 4 * num_tokens
    for begin in tl.range(first, end, CHUNK, num_stages=STAGES):
        rows = begin + places
        valid = rows < end
        k = _vectors(k_ptr, rows, end, qkv_stride, KEY, PADDED_KEY)
        q = _vectors(q_ptr, rows, end, qkv_stride, KEY, PADDED_KEY)
        taken = valid[:, None]
        if VALUE % COLUMNS != 0:
            taken = taken & (columns < VALUE)[None, :]
        wide_rows = rows.to(tl.int64)[:, None]
        v = tl.load(v_ptr + wide_rows * qkv_stride + columns[None, :], mask=taken, other=0.0)
        matrix = matrices + wide_rows * CHUNK + places[None, :]
        inverse = tl.load(inverse_ptr + matrix, mask=valid[:, None], other=0.0)
        scores = tl.load(scores_ptr + matrix, mask=valid[:, None], other=0.0)
        of_keys = tl.load(factors_ptr + rows, mask=valid, other=0.0)
        of_queries = tl.load(factors_ptr + num_tokens + rows, mask=valid, other=0.0)
        of_updates = tl.load(factors_ptr + 2 * num_tokens + rows, mask=valid, other=0.0)
        decay = tl.load(factors_ptr + 3 * num_tokens + begin)
        stored = s.to(k.dtype)
        difference = v - of_keys[:, None] * tl.dot(k, stored, input_precision=PRECISION)
        u = tl.dot(inverse, difference.to(k.dtype), input_precision=PRECISION)
        result = of_queries[:, None] * tl.dot(q, stored, input_precision=PRECISION)
        result = tl.dot(scores, u.to(k.dtype), result, input_precision=PRECISION)
        update = (of_updates[:, None] * u).to(k.dtype)
        s = tl.dot(tl.trans(k), update, s * decay, input_precision=PRECISION)
        to = out_ptr + (wide_rows * HEADS + head) * VALUE + columns[None, :]
        tl.store(to, result.to(out_ptr.dtype.element_ty), mask=taken)

    if (write >= 0) & (write < num_blocks):
        kept = s.to(state_ptr.dtype.element_ty)
        tl.store(state_ptr + write * state_stride + state_at, kept, mask=inside)
        counts = tl.zeros([COLUMNS // 8], tl.int32) + length
        # Every warp has read its count of the tokens folded so far before one of them writes it.
        tl.debug_barrier()
        tl.store(folded_ptr + write * folded_stride + pieces_at, counts, mask=pieces < VALUE // 8)
