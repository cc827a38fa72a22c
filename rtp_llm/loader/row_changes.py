# SPDX-License-Identifier: Apache-2.0
"""Changes to rows of a checkpoint that stores them in another order, or other values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from rtp_llm.layers import WeightTarget, loads_last, rows_together

_CPU = torch.device("cpu")


class RowChange(Protocol):
    """Turns rows as they are stored into rows as a layer wants them, `rows_together` at a time."""

    @property
    def rows_together(self) -> int: ...

    def apply(self, rows: Tensor) -> Tensor:
        """The rows that take the place of `rows`."""


@dataclass(frozen=True)
class HalvesInTurn:
    """Rows of each head alternate between its halves; they become one half after the other."""

    head_dim: int

    @property
    def rows_together(self) -> int:
        return self.head_dim

    def apply(self, rows: Tensor) -> Tensor:
        pairs = torch.unflatten(rows, 0, (-1, self.head_dim // 2, 2))
        return pairs.transpose(1, 2).reshape(rows.shape)


@dataclass(frozen=True)
class OneAdded:
    """Numbers that had 1 added when they were stored."""

    rows_together: int = 1

    def apply(self, rows: Tensor) -> Tensor:
        return rows.float() - 1.0


class ChangingTarget:
    """Changes rows and gives them to `target`."""

    def __init__(self, target: WeightTarget, change: RowChange) -> None:
        self._target, self._change = target, change
        self.shape = target.shape
        self.loads_last = loads_last([target])
        self.rows_together = math.lcm(change.rows_together, rows_together([target]))
        self.device: torch.device = getattr(target, "device", _CPU)

    def destination(self, start: int, stop: int) -> Tensor | None:
        return None

    def write(self, start: int, rows: Tensor) -> None:
        self._target.write(start, self._change.apply(rows))
