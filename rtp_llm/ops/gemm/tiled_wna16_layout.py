# SPDX-License-Identifier: Apache-2.0
"""Packs integer weights in groups for tensor cores: see rtp_llm/kernels/common/gemm/tiled_wna16.h.

Packed: weight int8 [K / 128, O / 8, 128 x bits], scale float16 or bfloat16 and zero, int8 or of
scale's dtype, [blocks, O, groups], where a k-block of 128 columns has 8, 4, 2 or 1 groups, or all
k-blocks of a longer group one. What is packed: see int_groups.py.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rtp_llm.ops.gemm.int_groups import unpack_bytes
from rtp_llm.ops.registry import has_kernel

K_BLOCK = 128
_UNIT_ROWS = 8
_CHUNK = 32  # columns
TILE_ROWS = 1024  # that are packed at a time


class TiledWna16(NamedTuple):
    """A packed weight: scale * (code - zero), or scale * (code - half) + zero if zero is floats.

    half is 2^(bits - 1); zero is None where all zero points are that.
    """

    weight: Tensor
    scale: Tensor
    zero: Tensor | None


class Integers(NamedTuple):
    """Weights scale * (code - half) + zero, with half = 2^(bits - 1).

    codes uint8 [..., weights]; scale and zero (if there is one) float32 [..., groups].
    """

    codes: Tensor
    scale: Tensor
    zero: Tensor | None = None


def has_kernels(dtype: torch.dtype, device_type: str) -> bool:
    """Whether a device multiplies x of `dtype` by packed weights."""
    is_16_bit = dtype in (torch.float16, torch.bfloat16)
    return is_16_bit and has_kernel("tiled_wna16_linear", device_type)


def takes(rows: int, columns: int, group: int) -> bool:
    """Whether kernels take such a weight; a `group` of 0 columns means all of them."""
    divides = group == 0 or (columns % group == 0 and (group in (32, 64) or group % K_BLOCK == 0))
    return rows % 32 == 0 and columns % K_BLOCK == 0 and columns > 0 and divides


def pack(weight: Tensor, scale: Tensor, zero: Tensor, bits: int) -> TiledWna16:
    """weight uint8 [O, K x bits / 8], scale [O, groups] of any float dtype, zero uint8 [O, groups].

    4 or 8 bits. Scales become float16 or bfloat16, whichever is closer. All groups have the same
    size.
    """
    rows, columns = len(weight), weight.shape[1] * 8 // bits
    packed = empty_codes(rows, columns, bits, weight.device)
    for start in range(0, rows, TILE_ROWS):
        put_codes(packed, start, unpack_bytes(weight[start : start + TILE_ROWS], bits), bits)
    scales = scale.to(_dtype_of_scales(scale))
    symmetric = bool((zero == 1 << (bits - 1)).all())
    zeros = None if symmetric else _by_blocks(zero, columns).view(torch.int8)
    return TiledWna16(packed, _by_blocks(scales, columns), zeros)


def empty_codes(rows: int, columns: int, bits: int, device: torch.device) -> Tensor:
    """A weight of TiledWna16 for put_codes()."""
    shape = columns // K_BLOCK, rows // _UNIT_ROWS, K_BLOCK * bits
    return torch.empty(shape, dtype=torch.int8, device=device)


def put_codes(packed: Tensor, start: int, codes: Tensor, bits: int) -> None:
    """Pack codes uint8 [rows, K], the rows of a weight from `start` on, which eight divides."""
    units = slice(start // _UNIT_ROWS, (start + len(codes)) // _UNIT_ROWS)
    packed[:, units] = _packed_codes(codes, bits).view(torch.int8)


def with_numbers(packed: Tensor, columns: int, scale: Tensor, zero: Tensor | None) -> TiledWna16:
    """A weight of K columns that put_codes() packed, scale and zero float32 [O, groups]."""
    dtype = _dtype_of_scales(scale if zero is None else torch.cat((scale, zero), dim=1))
    zeros = None if zero is None else _by_blocks(zero.to(dtype), columns)
    return TiledWna16(packed, _by_blocks(scale.to(dtype), columns), zeros)


def _dtype_of_scales(scale: Tensor) -> torch.dtype:
    """The type in which rows of numbers have the smaller relative errors together."""
    exact = scale.float()
    sizes = exact.square().sum(dim=1).clamp_(min=torch.finfo(torch.float32).tiny)

    def error(dtype: torch.dtype) -> float:
        rounded = scale.to(dtype).float()
        return float(((rounded - exact).square().sum(dim=1) / sizes).sum())

    return torch.float16 if error(torch.float16) <= error(torch.bfloat16) else torch.bfloat16


def _by_blocks(numbers: Tensor, columns: int) -> Tensor:
    """[O, groups] -> [blocks, O, groups of a block]."""
    rows, groups = numbers.shape
    of_block = max(1, groups * K_BLOCK // columns)
    return numbers.reshape(rows, groups // of_block, of_block).transpose(0, 1).contiguous()


def _packed_codes(codes: Tensor, bits: int) -> Tensor:
    """uint8 [rows, K] -> uint8 [K / 128, rows / 8, 128 x bits]."""
    rows, columns = codes.shape
    units, blocks = bits // 4, columns // K_BLOCK
    # Axes: 8 rows, row, k-block, unit, chunk of 32 columns, pair, lane of four, which of a pair.
    chunks = K_BLOCK // units // _CHUNK
    axes = codes.view(rows // _UNIT_ROWS, _UNIT_ROWS, blocks, units, chunks, 4, 4, 2)
    of_lanes = axes.permute(2, 0, 3, 1, 6, 4, 5, 7)  # the last three are a lane's
    if bits == 8:
        return of_lanes.reshape(blocks, rows // _UNIT_ROWS, -1)
    # Of a word the low 16 bits have the first of each pair, the high ones the second.
    halves = of_lanes.transpose(-1, -2)
    low = halves & 0xF
    packed = (low[..., 0::2] | (low[..., 1::2] << 4)).reshape(blocks, rows // _UNIT_ROWS, -1)
    if bits == 4:
        return packed
    return torch.cat((packed, _packed_high(halves >> 4, bits - 4)), dim=-1)


def _packed_high(halves: Tensor, count: int) -> Tensor:
    """`count` bits of each number, [blocks, tiles, 1, row, lane of four, chunk, which, pair].

    Each 16 bits have those of 16 / count pairs, in the halves of a word. uint8 [blocks, tiles, -1].
    """
    blocks, tiles = halves.shape[:2]
    # A lane has `count` words, each for 4 / count chunks.
    words = halves.reshape(blocks, tiles, 32, count, 4 // count, 2, 4)
    numbers = words.transpose(4, 5).flatten(5).int()  # ..., which, pairs of the chunks in order
    shifts = torch.arange(0, 16, count, device=halves.device, dtype=torch.int32)
    summed = (numbers << shifts).sum(dim=-1, dtype=torch.int32)  # [..., word, which]
    both = torch.stack((summed & 0xFF, summed >> 8), dim=-1)
    return both.to(torch.uint8).reshape(blocks, tiles, -1)


def unpack(packed: TiledWna16, bits: int) -> Tensor:
    """The float32 [O, K] that a packed weight stands for."""
    blocks, tiles = packed.weight.shape[:2]
    rows, columns = tiles * _UNIT_ROWS, blocks * K_BLOCK
    of_lanes = _unpacked_codes(packed.weight.view(torch.uint8), bits)
    numbers = of_lanes.permute(1, 3, 0, 2, 5, 6, 4, 7).reshape(rows, columns).float()
    scale = _by_rows(packed.scale, columns)
    half = 1 << (bits - 1)
    if packed.zero is None:
        return (numbers - half) * scale
    if packed.zero.dtype.is_floating_point:
        return (numbers - half) * scale + _by_rows(packed.zero, columns)
    return (numbers - _by_rows(packed.zero.view(torch.uint8), columns)) * scale


def _unpacked_codes(weight: Tensor, bits: int) -> Tensor:
    """uint8 [blocks, tiles, units, row, lane of four, chunk, pair, which]."""
    blocks, tiles = weight.shape[:2]
    units = bits // 4
    low = weight[..., : units * 512].reshape(blocks, tiles, units, _UNIT_ROWS, 4, 16)
    if bits == 8:
        return low.view(*low.shape[:-1], 2, 4, 2)
    pairs = low.view(*low.shape[:-1], 4, 2, 2)  # chunk, which of a pair, two pairs
    halves = torch.stack((pairs & 0xF, pairs >> 4), dim=-1).flatten(-2)
    if bits > 4:
        count = bits - 4
        both = weight[..., 512:].reshape(blocks, tiles, 32, count, 2, 2).int()
        words = both[..., 0] | both[..., 1] << 8  # [..., word, which]
        shifts = torch.arange(0, 16, count, device=weight.device, dtype=torch.int32)
        numbers = (words.unsqueeze(-1) >> shifts & (1 << count) - 1).to(torch.uint8)
        of_chunks = torch.unflatten(numbers, -1, (-1, 4)).transpose(
            4, 5
        )  # word, chunk, which, pair
        halves = halves | of_chunks.reshape(halves.shape) << 4
    return halves.transpose(-1, -2)


def _by_rows(numbers: Tensor, columns: int) -> Tensor:
    """[blocks, O, groups of a block] -> float32 [O, columns]."""
    groups = numbers.transpose(0, 1).flatten(1).float()
    return groups.repeat_interleave(columns // groups.shape[1], dim=1)
