# SPDX-License-Identifier: Apache-2.0
"""Kernels of FP8 with a scale for each token and each output channel."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def quantize_kernel(q_ptr, scales_ptr, x_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """One row of x [M, SIZE] as e4m3, with the scale that makes its largest magnitude 448."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < SIZE
    x = tl.load(x_ptr + row * SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    largest = tl.maximum(tl.max(tl.abs(x), axis=0), 1e-10)
    scale = largest / 448.0
    q = tl.minimum(tl.maximum(x / scale, -448.0), 448.0)
    tl.store(q_ptr + row * SIZE + columns, q.to(q_ptr.dtype.element_ty), mask=inside)
    tl.store(scales_ptr + row, scale)


@triton.jit
def channel_linear_kernel(
    out_ptr, q_ptr, scales_ptr, weight_ptr, weight_scales_ptr, rows, SIZE: tl.constexpr,
    DEPTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """out [rows, SIZE] = q [rows, DEPTH] times weight [SIZE, DEPTH], and both rows' scales."""
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, STEP)
    row_inside, column_inside = row < rows, column < SIZE
    x = q_ptr + row.to(tl.int64)[:, None] * DEPTH + depth[None, :]
    weight = weight_ptr + column.to(tl.int64)[None, :] * DEPTH + depth[:, None]
    sums = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for at in range(0, DEPTH, STEP):
        inside = depth < DEPTH - at
        part = tl.load(x + at, mask=row_inside[:, None] & inside[None, :], other=0.0)
        mask = column_inside[None, :] & inside[:, None]
        sums += tl.dot(part, tl.load(weight + at, mask=mask, other=0.0))
    scales = tl.load(scales_ptr + row, mask=row_inside, other=0.0)
    channels = tl.load(weight_scales_ptr + column, mask=column_inside, other=0.0)
    sums *= scales[:, None] * channels[None, :]
    to = out_ptr + row.to(tl.int64)[:, None] * SIZE + column[None, :]
    mask = row_inside[:, None] & column_inside[None, :]
    tl.store(to, sums.to(out_ptr.dtype.element_ty), mask=mask)
