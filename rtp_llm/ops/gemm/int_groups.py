# SPDX-License-Identifier: Apache-2.0
"""Integer weights of 4 or 8 bits, with a scale and a zero point for each group of columns.

In memory: weight uint8 [N, K x bits / 8], of a pair of 4-bit codes the even column in the low
bits; scales [N, groups]; zeros uint8 [N, groups]. A weight is scale x (code - zero).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

WORD_BITS = 32
_TILE_ROWS = 256


def unpack_words(words: Tensor, bits: int) -> Tensor:
    """int32 [rows, W] -> codes uint8 [rows, W x 32 / bits], the lowest bits of a word first."""
    rows, count = words.shape
    # Flat first: one column may have any stride, and only a stride of 1 can be seen as bytes.
    packed = words.contiguous().view(-1).view(torch.uint8)
    return unpack_bytes(packed.view(rows, count * 4), bits)


def unpack_bytes(packed: Tensor, bits: int) -> Tensor:
    """uint8 [rows, K x bits / 8] -> codes uint8 [rows, K]."""
    if bits == 8:
        return packed
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)


def pack_bytes(codes: Tensor, bits: int) -> Tensor:
    """Codes uint8 [rows, K], K even -> uint8 [rows, K x bits / 8]."""
    return codes if bits == 8 else codes[:, 0::2] | (codes[:, 1::2] << 4)


def dequantize(codes: Tensor, scales: Tensor, zeros: Tensor, group_of: Tensor) -> Tensor:
    """The float32 [rows, K] of codes uint8 [rows, K]; column k is in group group_of[k].

    scales and zeros are [rows, groups]; group_of is int32 or int64 [K].
    """
    numbers = codes.float() - zeros.float()[:, group_of]
    return numbers * scales.float()[:, group_of]


def groups_in_order(columns: int, group: int, start: int = 0) -> Tensor:
    """The group of each column from `start` on: int64 [columns]; group 0 is all columns."""
    every = torch.arange(start, start + columns)
    return every // group if group else torch.zeros_like(every)


class SortedGroups(NamedTuple):
    """A weight whose columns are sorted by group; order int32 [columns] says where each was.

    -1 is a column of zeros. None: columns are where they were.
    """

    weight: Tensor
    scale: Tensor
    zero: Tensor
    group: int
    order: Tensor | None = None


def sort_by_group(
    weight: Tensor, scale: Tensor, zero: Tensor, bits: int, group: int, group_of: Tensor, unit: int
) -> SortedGroups:
    """Sort the columns of a weight by group_of int64 [K], their groups.

    Groups of `group` columns stay so if that is a multiple of `unit`; others are padded to
    multiples of it, and cut into groups of `unit` columns.
    """
    groups, columns = scale.shape[1], len(group_of)
    if groups == 1:
        return SortedGroups(weight, scale, zero, 0)
    order = torch.argsort(group_of, stable=True)
    sizes = torch.bincount(group_of, minlength=groups).tolist()
    if group % unit == 0 and set(sizes[: columns // group]) == {group}:
        if torch.equal(order, torch.arange(columns, device=order.device)):
            return SortedGroups(weight, scale, zero, group)
    else:
        counts = [-(-size // unit) for size in sizes]
        parts = [
            functional.pad(part, (0, count * unit - len(part)), value=-1)
            for part, count in zip(torch.split(order, sizes), counts, strict=True)
        ]
        order, group = torch.cat(parts), unit
        repeats = torch.tensor(counts, device=order.device)
        each = torch.arange(groups, device=order.device).repeat_interleave(repeats)
        scale, zero = scale[:, each], zero[:, each]
    sorted_weight = weight.new_empty((len(weight), len(order) * bits // 8))
    for start in range(0, len(weight), _TILE_ROWS):
        rows = slice(start, start + _TILE_ROWS)
        codes = functional.pad(unpack_bytes(weight[rows], bits), (0, 1))
        sorted_weight[rows] = pack_bytes(codes[:, order], bits)
    return SortedGroups(sorted_weight, scale, zero, group, order.to(torch.int32))
