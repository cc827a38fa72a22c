# SPDX-License-Identifier: Apache-2.0
"""The CPU's layout of integer weights in groups: see rtp_llm/kernels/common/gemm/wna16.h.

What is packed: see int_groups.py.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from rtp_llm.ops.gemm.int_groups import unpack_bytes
from rtp_llm.ops.huge_pages import empty_on

BLOCK_ROWS = 16
GROUP_UNIT = 32  # groups are multiples of so many columns, or all columns
_TILE_BLOCKS = 16  # that are packed at a time


class Wna16Weights(NamedTuple):
    """weight int8 [blocks, bytes], scale float32 and zero int8 [blocks, groups, 16]; see pack()."""

    weight: Tensor
    scale: Tensor
    zero: Tensor


def part_columns(group: int) -> int:
    """Columns of x that share a scale, to which weights are padded."""
    return 2 * GROUP_UNIT if group % (2 * GROUP_UNIT) == 0 else GROUP_UNIT


def pack(weight: Tensor, scale: Tensor, zero: Tensor, bits: int, group: int) -> Wna16Weights:
    """The kernel's layout of weight uint8 [N, K x bits / 8], scale and zero uint8 [N, groups].

    `group`: columns of a group, a multiple of GROUP_UNIT, or 0 for all of them.
    """
    rows, columns = len(weight), weight.shape[1] * 8 // bits
    part = part_columns(group)
    blocks, width = -(-rows // BLOCK_ROWS), -(-columns // part) * part * BLOCK_ROWS * bits // 8
    numbers = blocks, scale.shape[1], BLOCK_ROWS
    packed = Wna16Weights(
        empty_on(weight.device, (blocks, width), torch.int8),
        empty_on(weight.device, numbers, torch.float32),
        empty_on(weight.device, numbers, torch.int8),
    )
    for block in range(0, blocks, _TILE_BLOCKS):
        span = slice(block * BLOCK_ROWS, (block + _TILE_BLOCKS) * BLOCK_ROWS)
        tile = slice(block, block + _TILE_BLOCKS)
        codes = _packed_codes(unpack_bytes(weight[span], bits), bits, width)
        packed.weight[tile] = codes.view(torch.int8)
        packed.scale[tile] = _in_blocks(scale[span])
        packed.zero[tile] = _in_blocks(zero[span]).view(torch.int8)
    return packed


def _packed_codes(codes: Tensor, bits: int, width: int) -> Tensor:
    """uint8 [rows, K] -> uint8 [blocks, width]."""
    columns = width * 8 // bits // BLOCK_ROWS
    padded = functional.pad(codes, (0, columns - codes.shape[1], 0, -len(codes) % BLOCK_ROWS))
    if bits == 8:
        steps = padded.view(-1, BLOCK_ROWS, columns // 4, 4)
    else:
        halves = padded.view(-1, BLOCK_ROWS, columns // 8, 2, 4)
        steps = halves[..., 0, :] | (halves[..., 1, :] << 4)
    return steps.transpose(1, 2).reshape(-1, width)


def _in_blocks(numbers: Tensor) -> Tensor:
    """[rows, groups] -> [blocks, groups, 16]."""
    padded = functional.pad(numbers, (0, 0, 0, -len(numbers) % BLOCK_ROWS))
    return padded.reshape(-1, BLOCK_ROWS, numbers.shape[1]).transpose(1, 2).contiguous()


def unpack(weight: Tensor, scale: Tensor, zero: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes uint8 [rows, columns], scales and zeros uint8 [rows, groups], with what was padded."""
    raw = weight.view(torch.uint8).view(len(weight), -1, BLOCK_ROWS, 4).transpose(1, 2)
    if bits == 4:
        raw = torch.stack((raw & 0xF, raw >> 4), dim=3)
    codes = raw.reshape(len(weight) * BLOCK_ROWS, -1)
    scales, zeros = (
        each.transpose(1, 2).reshape(len(codes), -1) for each in (scale, zero.view(torch.uint8))
    )
    return codes, scales, zeros
