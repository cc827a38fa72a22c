# SPDX-License-Identifier: Apache-2.0
"""Weight targets, which receive the rows of a checkpoint's tensors as they are read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn


class WeightTarget(Protocol):
    """Takes one tensor of the checkpoint, a few rows (entries of its first axis) at a time."""

    shape: tuple[int, ...]

    def destination(self, start: int, stop: int) -> Tensor | None:
        """The memory that rows can be read into directly, or None if they must be converted."""

    def write(self, start: int, rows: Tensor) -> None:
        """Store `rows` (floating point, on the CPU), which begin at row `start` of the tensor.

        The copy may still be under way on the device's current stream when this returns.

        Raises OverflowError or ValueError when a value does not fit the number type.
        """


@runtime_checkable
class HoldsWeights(Protocol):
    """A module whose parameters come from a checkpoint."""

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        """(name in the checkpoint, target) for each; `path` is the module's own, "a.b." style."""


@runtime_checkable
class FinishesLoading(Protocol):
    """A module with work to do once all of its weights are loaded."""

    def finish_loading(self) -> None:
        """Called once, after the last row."""


@runtime_checkable
class TakesRowsTogether(Protocol):
    """A target that takes rows in multiples of `rows_together`, except for the last ones.

    Rows may also arrive on `device`, where they are stored.
    """

    rows_together: int
    device: torch.device


@runtime_checkable
class LoadsLast(Protocol):
    """A target that converts rows with what other targets (of scales) have loaded before."""

    loads_last: bool


@runtime_checkable
class Quantizes(Protocol):
    """A target that quantises floats."""

    @property
    def stored_bytes(self) -> int:
        """What the numbers and their scales take."""

    def rounded(self, rows: Tensor) -> Tensor:
        """The float32 values that `rows`, the first of a weight, have once they are stored."""


class RowsTarget:
    """A target for rows of a parameter: a whole weight, or one part of a fused one."""

    def __init__(self, parameter: Tensor, first: int = 0, rows: int | None = None) -> None:
        count = parameter.shape[0] if rows is None else rows
        self._rows = parameter.detach().narrow(0, first, count)
        self.shape = tuple(self._rows.shape)
        self.device = self._rows.device

    def destination(self, start: int, stop: int) -> Tensor | None:
        return self._rows[start:stop]

    def write(self, start: int, rows: Tensor) -> None:
        span = self._rows[start : start + rows.shape[0]]
        span.copy_(rows, non_blocking=True)
        if span.dtype is torch.float16 and span.isinf().any() and not rows.isinf().any():
            raise OverflowError("values beyond the range of float16; load with --dtype bfloat16")


class HeadsTarget:
    """A target for `weight` [heads, rows, columns], of any strides, as [heads * rows, columns]."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight.detach()
        heads, self.rows_together, columns = weight.shape
        self.shape: tuple[int, ...] = (heads * self.rows_together, columns)
        self.device = weight.device

    def destination(self, start: int, stop: int) -> Tensor | None:
        return None

    def write(self, start: int, rows: Tensor) -> None:
        first = start // self.rows_together
        heads = rows.view(-1, self.rows_together, rows.shape[1])
        RowsTarget(self._weight, first, len(heads)).write(0, heads)


class NotLocal:
    """A checkpoint tensor owned by another rank: its name is known, but it is not read."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def destination(self, start: int, stop: int) -> Tensor | None:
        return None

    def write(self, start: int, rows: Tensor) -> None:
        raise AssertionError("rows of a tensor that belongs to another process")


def loads_last(targets: Iterable[WeightTarget]) -> bool:
    """Whether one of `targets` needs others to be loaded before it."""
    return any(isinstance(each, LoadsLast) and each.loads_last for each in targets)


def rows_together(targets: Iterable[WeightTarget]) -> int:
    """The multiple of rows in which a tensor must arrive to suit all of `targets`."""
    counts = (each.rows_together for each in targets if isinstance(each, TakesRowsTogether))
    return math.lcm(*counts)


def weight_targets(module: nn.Module, path: str = "") -> Iterator[tuple[str, WeightTarget]]:
    """(name in the checkpoint, target) for every weight below `module`, in order of use.

    A name occurs twice if a tensor of the checkpoint has two targets.
    """
    if isinstance(module, HoldsWeights):
        yield from module.checkpoint_targets(path)
        return
    for name, child in module.named_children():
        yield from weight_targets(child, f"{path}{name}.")


def finish_loading(module: nn.Module) -> None:
    """Call finish_loading of every layer below `module`, once all weights are loaded."""
    for layer in module.modules():
        if isinstance(layer, FinishesLoading):
            layer.finish_loading()
