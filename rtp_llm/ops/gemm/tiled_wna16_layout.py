# SPDX-License-Identifier: Apache-2.0
"""Packs integer weights in groups for tensor cores: see rtp_llm/kernels/common/gemm/tiled_wna16.h.

Packed: weight int8 [K / 128, O / 8, units, 32, 16], scale float16 or bfloat16 and zero int8
[blocks, O, groups], where a k-block of 128 columns has 4, 2 or 1 groups, or all k-blocks of a
longer group one. What is packed: see int_groups.py.
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
_TILE_ROWS = 1024  # that are packed at a time


class TiledWna16(NamedTuple):
    """A packed weight; zero is None where all zero points are 8, or 128 of 8 bits."""

    weight: Tensor
    scale: Tensor
    zero: Tensor | None


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

    Scales become float16 or bfloat16: whichever is exact, else float16 if they are in its range
    or zero.
    All groups have the same size.
    """
    rows, columns = len(weight), weight.shape[1] * 8 // bits
    shape = (columns // K_BLOCK, rows // _UNIT_ROWS, bits // 4, 32, 16)
    packed = torch.empty(shape, dtype=torch.int8, device=weight.device)
    for start in range(0, rows, _TILE_ROWS):
        codes = unpack_bytes(weight[start : start + _TILE_ROWS], bits)
        units = slice(start // _UNIT_ROWS, (start + len(codes)) // _UNIT_ROWS)
        packed[:, units] = _packed_codes(codes, bits).view(torch.int8)
    scales = scale.to(_dtype_of_scales(scale))
    symmetric = bool((zero == 1 << (bits - 1)).all())
    zeros = None if symmetric else _by_blocks(zero, columns).view(torch.int8)
    return TiledWna16(packed, _by_blocks(scales, columns), zeros)


def _dtype_of_scales(scale: Tensor) -> torch.dtype:
    for dtype in (torch.float16, torch.bfloat16):
        if torch.equal(scale.to(dtype).to(scale.dtype), scale):
            return dtype
    limits, sizes = torch.finfo(torch.float16), scale.abs()
    fits = bool(((sizes == 0) | ((sizes >= limits.tiny) & (sizes <= limits.max))).all())
    return torch.float16 if fits else torch.bfloat16


def _by_blocks(numbers: Tensor, columns: int) -> Tensor:
    """[O, groups] -> [blocks, O, groups of a block]."""
    rows, groups = numbers.shape
    of_block = max(1, groups * K_BLOCK // columns)
    return numbers.reshape(rows, groups // of_block, of_block).transpose(0, 1).contiguous()


def _packed_codes(codes: Tensor, bits: int) -> Tensor:
    """uint8 [rows, K] -> uint8 [K / 128, rows / 8, units, 32, 16]."""
    rows, columns = codes.shape
    units, blocks = bits // 4, columns // K_BLOCK
    # Axes: 8 rows, row, k-block, unit, chunk of 32 columns, pair, lane of four, which of a pair.
    chunks = K_BLOCK // units // _CHUNK
    axes = codes.view(rows // _UNIT_ROWS, _UNIT_ROWS, blocks, units, chunks, 4, 4, 2)
    of_lanes = axes.permute(2, 0, 3, 1, 6, 4, 5, 7)  # the last three are a lane's
    if bits == 4:
        # Of a word the low 16 bits have the first of each pair, the high ones the second.
        halves = of_lanes.transpose(-1, -2)
        of_lanes = halves[..., 0::2] | (halves[..., 1::2] << 4)
    return of_lanes.reshape(blocks, rows // _UNIT_ROWS, units, 32, 16)


def unpack(packed: TiledWna16, bits: int) -> Tensor:
    """The float32 [O, K] that a packed weight stands for."""
    blocks, tiles, units = packed.weight.shape[:3]
    codes = packed.weight.view(torch.uint8).view(blocks, tiles, units, _UNIT_ROWS, 4, 16)
    if bits == 4:
        pairs = codes.view(*codes.shape[:-1], 4, 2, 2)  # chunk, which of a pair, two pairs
        halves = torch.stack((pairs & 0xF, pairs >> 4), dim=-1).flatten(-2)
        of_lanes = halves.transpose(-1, -2)
    else:
        of_lanes = codes.view(*codes.shape[:-1], 2, 4, 2)
    rows, columns = tiles * _UNIT_ROWS, blocks * K_BLOCK
    numbers = of_lanes.permute(1, 3, 0, 2, 5, 6, 4, 7).reshape(rows, columns).float()
    scale = _by_rows(packed.scale, columns)
    zero = 1 << (bits - 1)
    if packed.zero is None:
        return (numbers - zero) * scale
    return (numbers - _by_rows(packed.zero.view(torch.uint8), columns)) * scale


def _by_rows(numbers: Tensor, columns: int) -> Tensor:
    """[blocks, O, groups of a block] -> float32 [O, columns]."""
    groups = numbers.transpose(0, 1).flatten(1).float()
    return groups.repeat_interleave(columns // groups.shape[1], dim=1)
