# SPDX-License-Identifier: Apache-2.0
"""Launches the experts of a mixture in Triton: gate and up with the activation, then down."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import torch
import triton
from torch import Tensor

from rtp_llm.kernels.triton.moe.moe_experts_kernel import down_kernel, gate_up_kernel
from rtp_llm.kernels.triton.processors import overlap_options


@dataclass(frozen=True)
class Tile:
    """Entries and columns per program, columns of x per iteration, warps, and load stages."""

    rows: int
    columns: int
    step: int
    warps: int
    stages: int
    group: int = 1


@dataclass(frozen=True)
class Tiles:
    """The tiles of both products."""

    gate_up: Tile
    down: Tile


# Mean entries per expert -> tiles; measured on an H200 with the shapes of
# Qwen3-30B-A3B, 1 to 4096 tokens, and Qwen3-Next, 4 to 64.
_FEW = Tiles(Tile(16, 32, 128, 4, 4), Tile(16, 128, 128, 4, 3))
_SOME = Tiles(Tile(32, 64, 128, 4, 3), Tile(32, 128, 128, 4, 3))
_MANY = Tiles(Tile(64, 64, 64, 4, 3), Tile(64, 128, 64, 4, 4))
_MOST = Tiles(Tile(128, 128, 64, 8, 4, 8), Tile(128, 256, 64, 8, 4, 8))
_BY_LOAD = ((12.0, _FEW), (24.0, _SOME), (48.0, _MANY), (math.inf, _MOST))
TILE_ENTRIES = 16  # of the tiles that are given (rtp_llm.ops.route_experts)
_ROOM_LEFT = 8 << 10  # shared memory left for what Triton keeps there besides the stages


def choose_tiles(entries: int, experts: int, device: torch.device, size: int = 2) -> Tiles:
    """The tiles for `entries` (token, expert) pairs over `experts`, of elements of `size` bytes."""
    load = entries / experts
    index = next(index for index, (most, _) in enumerate(_BY_LOAD) if load <= most)
    return _tiles(index, shared_memory(device), size)


def all_tiles(device: torch.device, size: int = 2) -> tuple[Tiles, ...]:
    """All choices of tiles, for compiling ahead of time."""
    return tuple(_tiles(index, shared_memory(device), size) for index in range(len(_BY_LOAD)))


@cache
def _tiles(index: int, room: int, size: int) -> Tiles:
    return _fitted(_BY_LOAD[index][1], room, size)


@cache
def shared_memory(device: torch.device) -> int:
    """Maximum bytes of shared memory per program."""
    properties = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)
    return int(properties["max_shared_mem"])


def _fitted(tiles: Tiles, room: int, size: int) -> Tiles:
    return Tiles(
        _with_fewer_stages(tiles.gate_up, 2, room, size),
        _with_fewer_stages(tiles.down, 1, room, size),
    )


def _with_fewer_stages(tile: Tile, weights: int, room: int, size: int) -> Tile:
    """Reduce the stages or columns of a tile until its stages (of x and `weights`) fit."""
    stage = tile.step * (tile.rows + weights * tile.columns) * size
    stages = (room - _ROOM_LEFT) // stage
    if stages < 2:
        return _with_fewer_stages(replace(tile, columns=tile.columns // 2), weights, room, size)
    return replace(tile, stages=min(tile.stages, stages))


def gate_up(
    x: Tensor,
    weight: Tensor,
    rows: Tensor,
    offsets: Tensor,
    top_k: int,
    shared: Tensor | None = None,
    tiles: Tensor | None = None,
    x_scales: Tensor | None = None,
    weight_scales: Tensor | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """See rtp_llm.ops.triton_gate_up. `tile` replaces the choice of `choose_tiles`."""
    tile = tile or choose_tiles(rows.numel(), weight.shape[0], x.device).gate_up
    out = _empty_out(x, rows.numel(), weight.shape[1] // 2)
    operands = (weight, shared, x_scales, weight_scales)
    _launch(gate_up_kernel, out, x, operands, (rows, offsets, tiles), top_k, tile)
    return out


def down(
    x: Tensor,
    weight: Tensor,
    rows: Tensor,
    offsets: Tensor,
    shared: Tensor | None = None,
    tiles: Tensor | None = None,
    x_scales: Tensor | None = None,
    weight_scales: Tensor | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """See rtp_llm.ops.triton_down. `tile` replaces the choice of `choose_tiles`."""
    tile = tile or choose_tiles(rows.numel(), weight.shape[0], x.device).down
    out = _empty_out(x, x.shape[0], weight.shape[1])
    operands = (weight, shared, x_scales, weight_scales)
    _launch(down_kernel, out, x, operands, (rows, offsets, tiles), 1, tile)
    return out


def _empty_out(x: Tensor, rows: int, size: int) -> Tensor:
    """The result without data; products of FP8 give bfloat16."""
    return x.new_empty(rows, size, dtype=torch.bfloat16 if x.dtype.itemsize == 1 else x.dtype)


def _launch(
    kernel: triton.JITFunction[object],
    out: Tensor,
    x: Tensor,
    operands: tuple[Tensor, Tensor | None, Tensor | None, Tensor | None],
    sorting: tuple[Tensor, Tensor, Tensor | None],
    top_k: int,
    tile: Tile,
) -> None:
    """`operands`: weights of the routed and the shared experts, scales of x and of the weights;
    `sorting`: rows, offsets, tiles."""
    entries, size = out.shape
    if entries == 0:
        return
    weight, shared, x_scales, weight_scales = operands
    rows, offsets, tiles = sorting
    tiles = tiles if tile.rows == TILE_ENTRIES else None
    experts, _, depth = weight.shape
    groups = -(-tile_bound(entries, experts + (shared is not None), tile.rows) // tile.group)
    columns = -(-size // tile.columns)
    kernel[(groups * tile.group * columns,)](
        out, x, weight, shared, rows, offsets, tiles, x_scales, weight_scales, SIZE=size,
        DEPTH=depth, TOP_K=top_k, EXPERTS=experts, PADDED=triton.next_power_of_2(experts),
        ROWS=tile.rows, COLUMNS=tile.columns, STEP=tile.step, GROUP=tile.group,
        num_warps=tile.warps, num_stages=tile.stages, **overlap_options(out.device),
    )  # fmt: skip


def tile_bound(entries: int, experts: int, rows: int) -> int:
    """Upper bound on the tiles for `entries` over `experts`, for any distribution."""
    return min(entries, entries // rows + min(entries, experts))


def compile_tiles(
    gate_up_weight: Tensor,
    down_weight: Tensor,
    rows: Tensor,
    offsets: Tensor,
    top_k: int,
    scales: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Compile all tiles by running each on one token without an expert.

    Args:
        gate_up_weight: [E, 2 I, K].
        down_weight: [E, N, I].
        scales: those of both weights, where they are FP8.
        rows: int32 [top_k], and
        offsets: int32 [E + 1], as sort_by_expert makes them of ids that are all -1.
    """
    one, many = (torch.ones(count, device=rows.device) for count in (1, top_k))
    x = torch.zeros(1, gate_up_weight.shape[2], device=rows.device).to(gate_up_weight.dtype)
    gated = torch.zeros(top_k, down_weight.shape[2], device=rows.device).to(down_weight.dtype)
    first, second = scales or (None, None)
    of_x, of_gated = (one, many) if scales else (None, None)
    for tiles in all_tiles(x.device):
        gate_up(
            x, gate_up_weight, rows, offsets, top_k,
            x_scales=of_x, weight_scales=first, tile=tiles.gate_up,
        )  # fmt: skip
        down(
            gated, down_weight, rows, offsets,
            x_scales=of_gated, weight_scales=second, tile=tiles.down,
        )  # fmt: skip
