# SPDX-License-Identifier: Apache-2.0
"""Products of tokens with the weights of their experts, in Triton.

Entries (token, expert) come sorted by expert (rtp_llm.ops.sort_by_expert). A program takes a tile
of ROWS entries of one expert and COLUMNS of its weight. It finds the expert of its tile from the
offsets alone: the grid has as many tiles as any distribution could need, so that nothing has to be
counted before the launch, and programs past the last tile exit at once.

Arguments that change from step to step are not specialised (`UNALIGNED`). OVERLAPS: the kernel is
launched while the previous one may still run.
"""

from __future__ import annotations

import triton
import triton.language as tl

UNALIGNED = ("rows_ptr", "offsets_ptr", "tiles_ptr")


@triton.jit
def _find_expert(
    offsets_ptr, tile, shared_ptr, EXPERTS: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr
):
    """Return (expert of the tile, its first entry, end of the expert's entries), or an empty range.

    If `shared_ptr` is given, the tiles after those of EXPERTS belong to one extra shared expert.
    """
    experts = tl.arange(0, PADDED)
    begins = tl.load(offsets_ptr + experts, mask=experts < EXPERTS, other=0)
    ends = tl.load(offsets_ptr + 1 + experts, mask=experts < EXPERTS, other=0)
    tiles = (ends - begins + ROWS - 1) // ROWS
    expert = tl.sum((tl.cumsum(tiles, axis=0) <= tile).to(tl.int32), axis=0)
    before = tl.sum(tl.where(experts < expert, tiles, 0), axis=0)
    begin = tl.sum(tl.where(experts == expert, begins, 0), axis=0)
    end = tl.sum(tl.where(experts == expert, ends, 0), axis=0)
    if shared_ptr is not None:
        is_shared = expert >= EXPERTS
        begin = tl.where(is_shared, tl.load(offsets_ptr + EXPERTS), begin)
        end = tl.where(is_shared, tl.load(offsets_ptr + EXPERTS + 1), end)
    return expert, begin + (tile - before) * ROWS, end


@triton.jit
def _entries(
    offsets_ptr, tiles_ptr, tile, shared_ptr, EXPERTS: tl.constexpr, PADDED: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Like _find_expert, but reads `tiles_ptr` if given; past the last tile the expert is -1."""
    if tiles_ptr is not None:
        packed = tl.load(tiles_ptr + tile)
        expert = packed >> 16
        first = packed & 0xFFFF
        end = tl.load(offsets_ptr + expert + 1)
    else:
        expert, first, end = _find_expert(offsets_ptr, tile, shared_ptr, EXPERTS, PADDED, ROWS)
    return expert, first, end


@triton.jit
def _weight_of(expert, weight_ptr, shared_ptr, EXPERTS: tl.constexpr, ELEMENTS: tl.constexpr):
    """Pointer to the weight of an expert; `shared_ptr`, if given, is that of expert EXPERTS."""
    weight = weight_ptr + expert.to(tl.int64) * ELEMENTS
    if shared_ptr is not None:
        weight = tl.where(expert >= EXPERTS, shared_ptr, weight)
    return weight


@triton.jit
def _scales(x_scales_ptrs, there, channels_ptrs):
    """Scales [ROWS, COLUMNS] of sums of FP8 numbers."""
    of_rows = tl.load(x_scales_ptrs, mask=there, other=0.0)
    return of_rows[:, None] * tl.load(channels_ptrs)[None, :]


@triton.jit
def _store(out_ptr, values, places, there, columns, SIZE: tl.constexpr):
    """Store the values [ROWS, COLUMNS] of places and columns that exist."""
    to = out_ptr + places.to(tl.int64)[:, None] * SIZE + columns[None, :]
    mask = there[:, None] & (columns < SIZE)[None, :]
    tl.store(to, values.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize_on_alignment=UNALIGNED)
def gate_up_kernel(
    out_ptr, x_ptr, weight_ptr, shared_ptr, rows_ptr, offsets_ptr, tiles_ptr, x_scales_ptr,
    weight_scales_ptr, SIZE: tl.constexpr, DEPTH: tl.constexpr, TOP_K: tl.constexpr,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
    GROUP: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """out[place] = silu(gate) * up of the token of that place: x[rows[place] / TOP_K].

    weight [EXPERTS, 2 SIZE, DEPTH]: gate, then up; shared [2 SIZE, DEPTH] or None: an extra expert.
    tiles [R] or None; x_scales [T] and weight_scales [EXPERTS, 2 SIZE] of FP8 operands, else None.
    """
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    column_tile, tile = _swizzled(SIZE, COLUMNS, GROUP)
    expert, first, end = _entries(offsets_ptr, tiles_ptr, tile, shared_ptr, EXPERTS, PADDED, ROWS)
    if first >= end:
        return
    places = first + tl.arange(0, ROWS)
    there = places < end
    tokens = (tl.load(rows_ptr + places, mask=there, other=0) // TOP_K).to(tl.int64)
    columns = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, STEP)
    x = x_ptr + tokens[:, None] * DEPTH + depth[None, :]
    weight = _weight_of(expert, weight_ptr, shared_ptr, EXPERTS, 2 * SIZE * DEPTH)
    gate = weight + (columns % SIZE).to(tl.int64)[None, :] * DEPTH + depth[:, None]
    gates = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    ups = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for at in range(0, DEPTH, STEP):
        inside = depth < DEPTH - at
        part = tl.load(x + at, mask=there[:, None] & inside[None, :], other=0.0)
        gates += tl.dot(part, tl.load(gate + at, mask=inside[:, None], other=0.0))
        up = gate + SIZE * DEPTH
        ups += tl.dot(part, tl.load(up + at, mask=inside[:, None], other=0.0))
    if x_scales_ptr is not None:
        channels = weight_scales_ptr + expert.to(tl.int64) * (2 * SIZE) + columns % SIZE
        gates *= _scales(x_scales_ptr + tokens, there, channels)
        ups *= _scales(x_scales_ptr + tokens, there, channels + SIZE)
    _store(out_ptr, gates * tl.sigmoid(gates) * ups, places, there, columns, SIZE)


@triton.jit(do_not_specialize_on_alignment=UNALIGNED)
def down_kernel(
    out_ptr, x_ptr, weight_ptr, shared_ptr, rows_ptr, offsets_ptr, tiles_ptr, x_scales_ptr,
    weight_scales_ptr, SIZE: tl.constexpr, DEPTH: tl.constexpr, TOP_K: tl.constexpr,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
    GROUP: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """out[place] = x[place] times the weight of its expert; weight [EXPERTS, SIZE, DEPTH].

    shared [SIZE, DEPTH]: as gate_up_kernel's; x_scales [R] and weight_scales [EXPERTS, SIZE] too.
    """
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    column_tile, tile = _swizzled(SIZE, COLUMNS, GROUP)
    expert, first, end = _entries(offsets_ptr, tiles_ptr, tile, shared_ptr, EXPERTS, PADDED, ROWS)
    if first >= end:
        return
    places = first + tl.arange(0, ROWS)
    there = places < end
    columns = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, STEP)
    x = x_ptr + places.to(tl.int64)[:, None] * DEPTH + depth[None, :]
    weight = _weight_of(expert, weight_ptr, shared_ptr, EXPERTS, SIZE * DEPTH)
    weight += (columns % SIZE).to(tl.int64)[None, :] * DEPTH + depth[:, None]
    sums = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for at in range(0, DEPTH, STEP):
        inside = depth < DEPTH - at
        part = tl.load(x + at, mask=there[:, None] & inside[None, :], other=0.0)
        sums += tl.dot(part, tl.load(weight + at, mask=inside[:, None], other=0.0))
    if x_scales_ptr is not None:
        channels = weight_scales_ptr + expert.to(tl.int64) * SIZE + columns % SIZE
        sums *= _scales(x_scales_ptr + places, there, channels)
    _store(out_ptr, sums, places, there, columns, SIZE)


@triton.jit
def _swizzled(SIZE: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr):
    """Return (tile of columns, tile of entries), such that GROUP tiles of entries share weights.

    Programs run in the order of their ids: neighbours process the same columns for a few tiles of
    entries, most of which belong to one expert if there are many.
    """
    program = tl.program_id(0)
    num_columns: tl.constexpr = (SIZE + COLUMNS - 1) // COLUMNS
    group = program // (GROUP * num_columns)
    within = program % (GROUP * num_columns)
    return within // GROUP, group * GROUP + within % GROUP
