# SPDX-License-Identifier: Apache-2.0
"""Experts with biases and the SwiGLU of gpt-oss, in Triton; weights in floats or in MXFP4.

The programs divide the work as those of moe_experts_kernel.py do. Blocks of MXFP4 are decoded in
registers: a byte has two numbers of neighbouring columns, so that the even and the odd columns of x
make one product each.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rtp_llm.kernels.triton.moe.moe_experts_kernel import UNALIGNED, _entries, _store, _swizzled


@triton.jit
def _numbers(codes, powers, TYPE: tl.constexpr):
    """The numbers of e2m1 codes (the low four bits) times `powers`, as TYPE."""
    magnitudes = (codes & 7).to(tl.int16)
    # The bits of a bfloat16; codes 0 and 1, which have no leading one, are 0 and 0.5.
    bits = tl.where(magnitudes > 1, (magnitudes << 6) + 0x3F00, magnitudes * 0x3F00)
    bits = bits | ((codes & 8).to(tl.int16) << 12)
    return (bits.to(tl.bfloat16, bitcast=True).to(tl.float32) * powers).to(TYPE)


@triton.jit
def _product(
    part, weight_ptr, scales_ptr, weight_rows, at, DEPTH: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """part [ROWS, STEP], columns of x from `at` on, times those of `weight_rows` int64 [COLUMNS].

    scales_ptr None: floats [.., DEPTH]; else bytes [.., DEPTH / 2], and exponents [.., DEPTH / 32].
    """
    if scales_ptr is not None:
        pairs = at // 2 + tl.arange(0, STEP // 2)
        blocks = at // 32 + tl.arange(0, STEP // 32)
        codes = tl.load(
            weight_ptr + weight_rows[None, :] * (DEPTH // 2) + pairs[:, None],
            mask=(pairs < DEPTH // 2)[:, None], other=0,
        )  # fmt: skip
        exponents = tl.load(
            scales_ptr + weight_rows[None, :] * (DEPTH // 32) + blocks[:, None],
            mask=(blocks < DEPTH // 32)[:, None], other=0,
        )  # fmt: skip
        powers = ((exponents.to(tl.int32) & 255) << 23).to(tl.float32, bitcast=True)
        wide = tl.broadcast_to(powers[:, None, :], (STEP // 32, 16, COLUMNS))
        powers = tl.reshape(wide, (STEP // 2, COLUMNS))
        even, odd = tl.split(tl.reshape(part, (ROWS, STEP // 2, 2)))
        low = _numbers(codes, powers, part.dtype)
        high = _numbers(codes >> 4, powers, part.dtype)
        sums = tl.dot(even, low)
        sums += tl.dot(odd, high)
    else:
        depth = at + tl.arange(0, STEP)
        there = (depth < DEPTH)[:, None]
        weight = weight_ptr + weight_rows[None, :] * DEPTH + depth[:, None]
        sums = tl.dot(part, tl.load(weight, mask=there, other=0.0))
    return sums


@triton.jit(do_not_specialize_on_alignment=UNALIGNED)
def biased_gate_up_kernel(
    out_ptr, x_ptr, weight_ptr, scales_ptr, bias_ptr, rows_ptr, offsets_ptr, tiles_ptr,
    ALPHA: tl.constexpr, LIMIT: tl.constexpr, SIZE: tl.constexpr, DEPTH: tl.constexpr,
    TOP_K: tl.constexpr, EXPERTS: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, STEP: tl.constexpr, GROUP: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """out[place] = gate * sigmoid(ALPHA gate) * (up + 1) of the token x[rows[place] / TOP_K].

    weight [EXPERTS, 2 SIZE, DEPTH]: gate, then up; bias [EXPERTS, 2 SIZE]. The gate is limited to
    LIMIT, up to +-LIMIT.
    """
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    column_tile, tile = _swizzled(SIZE, COLUMNS, GROUP)
    expert, first, end = _entries(offsets_ptr, tiles_ptr, tile, None, EXPERTS, PADDED, ROWS)
    if first >= end:
        return
    places = first + tl.arange(0, ROWS)
    there = places < end
    tokens = (tl.load(rows_ptr + places, mask=there, other=0) // TOP_K).to(tl.int64)
    columns = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, STEP)
    x = x_ptr + tokens[:, None] * DEPTH + depth[None, :]
    of_gate = expert.to(tl.int64) * (2 * SIZE) + columns % SIZE
    gates = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    ups = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for at in range(0, DEPTH, STEP):
        inside = depth < DEPTH - at
        part = tl.load(x + at, mask=there[:, None] & inside[None, :], other=0.0)
        gates += _product(part, weight_ptr, scales_ptr, of_gate, at, DEPTH, ROWS, COLUMNS, STEP)
        of_up = of_gate + SIZE
        ups += _product(part, weight_ptr, scales_ptr, of_up, at, DEPTH, ROWS, COLUMNS, STEP)
    gates += tl.load(bias_ptr + of_gate).to(tl.float32)[None, :]
    ups += tl.load(bias_ptr + of_gate + SIZE).to(tl.float32)[None, :]
    gates = tl.minimum(gates, LIMIT)
    ups = tl.minimum(tl.maximum(ups, -LIMIT), LIMIT)
    gated = gates * tl.sigmoid(ALPHA * gates) * (ups + 1.0)
    _store(out_ptr, gated, places, there, columns, SIZE)


@triton.jit(do_not_specialize_on_alignment=UNALIGNED)
def biased_down_kernel(
    out_ptr, x_ptr, weight_ptr, scales_ptr, bias_ptr, rows_ptr, offsets_ptr, tiles_ptr,
    ALPHA: tl.constexpr, LIMIT: tl.constexpr, SIZE: tl.constexpr, DEPTH: tl.constexpr,
    TOP_K: tl.constexpr, EXPERTS: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, STEP: tl.constexpr, GROUP: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """out[place] = x[place] times the weight [EXPERTS, SIZE, DEPTH] of its expert, plus its bias.

    ALPHA, LIMIT and TOP_K are not used.
    """
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    column_tile, tile = _swizzled(SIZE, COLUMNS, GROUP)
    expert, first, end = _entries(offsets_ptr, tiles_ptr, tile, None, EXPERTS, PADDED, ROWS)
    if first >= end:
        return
    places = first + tl.arange(0, ROWS)
    there = places < end
    columns = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, STEP)
    x = x_ptr + places.to(tl.int64)[:, None] * DEPTH + depth[None, :]
    of_weight = expert.to(tl.int64) * SIZE + columns % SIZE
    sums = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for at in range(0, DEPTH, STEP):
        inside = depth < DEPTH - at
        part = tl.load(x + at, mask=there[:, None] & inside[None, :], other=0.0)
        sums += _product(part, weight_ptr, scales_ptr, of_weight, at, DEPTH, ROWS, COLUMNS, STEP)
    sums += tl.load(bias_ptr + of_weight).to(tl.float32)[None, :]
    _store(out_ptr, sums, places, there, columns, SIZE)
