# SPDX-License-Identifier: Apache-2.0
"""Changes to rows of a checkpoint that stores them in another order, or other values."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rtp_llm.layers import Shard, WeightTarget, loads_last, rows_together

_CPU = torch.device("cpu")


class RowChange(ABC):
    """Turns rows as they are stored into rows as a layer wants them, `rows_together` at a time.

    `moves`: numbers change places with those of other ranks, so that a shard needs the whole.
    """

    moves: ClassVar[bool] = False

    @property
    def makes_floats(self) -> bool:
        """Whether blocks become floats."""
        return False

    @property
    def rows_together(self) -> int:
        return 1

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the changed tensor."""
        return stored

    @abstractmethod
    def apply(self, rows: Tensor) -> Tensor:
        """The rows that take the place of `rows`."""


@dataclass(frozen=True)
class HalvesInTurn(RowChange):
    """Rows of each head alternate between its halves; they become one half after the other."""

    head_dim: int

    @property
    def rows_together(self) -> int:
        return self.head_dim

    def apply(self, rows: Tensor) -> Tensor:
        pairs = torch.unflatten(rows, 0, (-1, self.head_dim // 2, 2))
        return pairs.transpose(1, 2).reshape(rows.shape)


@dataclass(frozen=True)
class OneAdded(RowChange):
    """Numbers that had 1 added when they were stored."""

    def apply(self, rows: Tensor) -> Tensor:
        return rows.float() - 1.0


class ChangingTarget:
    """Changes rows and gives them to `target`, which takes only `rows` and `columns` of them."""

    def __init__(
        self,
        target: WeightTarget,
        change: RowChange,
        rows: Shard | None = None,
        columns: Shard | None = None,
    ) -> None:
        self._target, self._change = target, change
        self._rows, self._columns = rows, columns
        self.shape = target.shape
        self.loads_last = loads_last([target])
        self.rows_together = math.lcm(change.rows_together, rows_together([target]))
        if rows is not None:
            self.rows_together = rows.whole
        self.device: torch.device = getattr(target, "device", _CPU)

    def destination(self, start: int, stop: int) -> Tensor | None:
        return None

    def write(self, start: int, rows: Tensor) -> None:
        rows = self._change.apply(rows)
        if self._columns is not None:
            ((first, end),) = self._columns.ranges
            rows = rows[:, first:end]
        if self._rows is not None:
            assert start == 0, "all rows come together"
            rows = torch.cat([rows[first:end] for first, end in self._rows.ranges])
        self._target.write(start, rows)
