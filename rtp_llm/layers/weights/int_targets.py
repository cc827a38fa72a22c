# SPDX-License-Identifier: Apache-2.0
"""Targets for integer weights in groups, whichever way the checkpoint packs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rtp_llm.layers.weights.stored_format import StoredFormat
from rtp_llm.layers.weights.targets import RowsTarget, WeightTarget, loads_last, rows_together
from rtp_llm.ops.gemm.int_groups import dequantize, groups_in_order, pack_bytes

# Packed rows -> codes uint8.
Unpack = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class GroupedWeight:
    """Where the tensors of a weight [N, K] go.

    scales float [N, groups]; zeros uint8 [N, groups]; group_of int32 [K], or None if groups of
    `group` columns follow each other (0: all columns are one). Codes go to `weight`: packed, uint8
    [N, K x bits / 8], or, if its dtype is a float, dequantised [N, K]; scales, zeros and group_of
    must be loaded before them then.
    """

    weight: Tensor
    scales: Tensor
    zeros: Tensor
    bits: int
    group: int
    group_of: Tensor | None = None

    @property
    def dequantizes(self) -> bool:
        return self.weight.dtype.is_floating_point

    def put(self, row: int, column: int, codes: Tensor) -> None:
        """Store codes uint8 [rows, columns], of which [0, 0] is weight [row, column]."""
        rows, columns = codes.shape
        codes = codes.to(self.weight.device, non_blocking=True)
        if not self.dequantizes:
            first, width = column * self.bits // 8, columns * self.bits // 8
            part = self.weight[row : row + rows, first : first + width]
            part.copy_(pack_bytes(codes, self.bits))
            return
        if self.group_of is None:
            group_of = groups_in_order(columns, self.group, column).to(codes.device)
        else:
            group_of = self.group_of[column : column + columns]
        scales, zeros = (each[row : row + rows] for each in (self.scales, self.zeros))
        numbers = dequantize(codes, scales, zeros, group_of)
        RowsTarget(self.weight[:, column : column + columns]).write(row, numbers)


class CodesTarget:
    """Takes the packed codes of a weight; `by_columns`: its rows are columns of the weight.

    `shape` is that of the packed tensor, of which a row has codes of `axis_codes` of the rows (or
    columns) of the weight.
    """

    def __init__(
        self,
        memory: GroupedWeight,
        stored: StoredFormat,
        shape: tuple[int, ...],
        unpack: Unpack,
        by_columns: bool = False,
        axis_codes: int = 1,
    ) -> None:
        self._memory, self._unpack, self._axis_codes = memory, unpack, axis_codes
        self._by_columns = by_columns
        self.stored, self.shape = stored, shape
        self.loads_last = memory.dequantizes
        # Two codes are in a byte, which two threads may not write at once.
        self.rows_together = 2 if by_columns and axis_codes == 1 else 1
        self.device = torch.device("cpu")

    def destination(self, start: int, stop: int) -> Tensor | None:
        return None

    def write(self, start: int, rows: Tensor) -> None:
        codes = self._unpack(rows)
        place = start * self._axis_codes
        row, column = (0, place) if self._by_columns else (place, 0)
        self._memory.put(row, column, codes)


class ZerosTarget:
    """Takes packed zero points and adds `added`; `unpack` gives [axis, N] or [N, axis] codes.

    Sums keep the `bits` of a code, as in the packages that write them.
    """

    def __init__(
        self,
        zeros: Tensor,
        shape: tuple[int, ...],
        unpack: Unpack,
        axis_codes: int = 1,
        added: int = 0,
        bits: int = 4,
    ) -> None:
        self._zeros, self._unpack = zeros, unpack
        self._axis_codes, self._added, self._mask = axis_codes, added, (1 << bits) - 1
        self.shape = shape

    def destination(self, start: int, stop: int) -> Tensor | None:
        return None

    def write(self, start: int, rows: Tensor) -> None:
        codes = (self._unpack(rows) + self._added) & self._mask
        first = start * self._axis_codes
        part = self._zeros[first : first + len(codes)]
        part.copy_(codes[: len(part), : part.shape[1]])


class OrderTarget:
    """Takes g_idx, the group of each column; `group_of` None: it must say what is the case anyway.

    Raises ValueError for groups that do not exist, or that are out of order without need.
    """

    def __init__(self, columns: int, groups: int, group: int, group_of: Tensor | None) -> None:
        self.shape: tuple[int, ...] = (columns,)
        self._groups, self._group, self._group_of = groups, group, group_of

    def destination(self, start: int, stop: int) -> Tensor | None:
        return None

    def write(self, start: int, rows: Tensor) -> None:
        if self._group_of is not None:
            low, high = int(rows.min()), int(rows.max())
            if low < 0 or high >= self._groups:
                raise ValueError(f"groups {low} to {high}, of {self._groups}")
            self._group_of[start : start + len(rows)].copy_(rows)
            return
        # A rank that has a shard of the columns begins with a later group.
        beyond = rows - groups_in_order(len(rows), self._group, start)
        if (beyond != beyond[0]).any():
            raise ValueError("columns are not in the order of their groups, and desc_act is false")


class SideBySide:
    """A tensor [rows, columns] whose columns alternate among `targets`, in `groups` groups."""

    def __init__(self, targets: Sequence[WeightTarget], groups: int) -> None:
        self.targets, self._groups = tuple(targets), groups
        self._sizes = [each.shape[1] // groups for each in targets]
        columns = sum(each.shape[1] for each in targets)
        self.shape: tuple[int, ...] = (targets[0].shape[0], columns)
        self.rows_together = rows_together(targets)
        self.loads_last = loads_last(targets)
        self.device = torch.device("cpu")

    def destination(self, start: int, stop: int) -> Tensor | None:
        return None

    def write(self, start: int, rows: Tensor) -> None:
        grouped = rows.reshape(len(rows), self._groups, sum(self._sizes))
        for target, part in zip(
            self.targets, torch.split(grouped, self._sizes, dim=2), strict=True
        ):
            target.write(start, part.flatten(1))
