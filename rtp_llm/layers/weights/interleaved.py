# SPDX-License-Identifier: Apache-2.0
"""Tensors of a checkpoint that hold the rows of several parts of a linear layer, group by group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from rtp_llm.layers.weights.targets import (
    RowsTarget,
    WeightTarget,
    loads_last,
    rows_together,
)

_CPU = torch.device("cpu")


class SharedBlocksError(ValueError):
    """FP8 blocks of a tensor would span several parts; the message names them."""


@dataclass(frozen=True)
class Interleaved:
    """The checkpoint tensor `tensor` interleaves the rows of `parts` in `groups` groups.

    For example, Qwen3-Next's q_proj holds the query rows and then the gate rows of each head, which
    is Interleaved("q_proj", ("query", "gate"), heads); the layer itself keeps all queries together.
    """

    tensor: str
    parts: tuple[str, ...]
    groups: int


def tensors_of(
    parts: Mapping[str, int], interleaved: Iterable[Interleaved]
) -> dict[str, Interleaved]:
    """The checkpoint tensors that hold a layer's `parts` (name -> rows), in the order of the parts.

    A part that is in no `interleaved` tensor has a tensor of its own. Raises ValueError if parts
    are unknown, occur in several tensors, or do not divide into whole groups.
    """
    owner = {part: each for each in interleaved for part in each.parts}
    named = [part for each in interleaved for part in each.parts]
    if len(named) != len(owner) or not owner.keys() <= parts.keys():
        raise ValueError(f"{named} should be parts of {list(parts)}, each in one tensor")
    for part, each in owner.items():
        if parts[part] % each.groups:
            raise ValueError(f"{part} has {parts[part]} rows, not whole ones of {each.groups}")
    found = (owner.get(part, Interleaved(part, (part,), 1)) for part in parts)
    return {each.tensor: each for each in found}


def check_blocks(tensor: Interleaved, parts: Mapping[str, int], block: int) -> None:
    """Raise SharedBlocksError if parts of `tensor` would share blocks of `block` rows."""
    for part in tensor.parts:
        rows = parts[part] // tensor.groups
        if len(tensor.parts) > 1 and rows % block:
            raise SharedBlocksError(
                f"{tensor.tensor} has {rows} rows of {part} at a time: blocks of {block} rows, "
                "which have one scale, would belong to several parts"
            )


def interleave(targets: Sequence[WeightTarget], groups: int) -> WeightTarget:
    """Create a target for a tensor that interleaves the rows of `targets` in `groups` groups."""
    if len(targets) == 1:
        return targets[0]
    if all(each.shape[0] == groups for each in targets):
        return _AlternatingTarget(targets)
    return _InterleavedTarget(targets, groups)


def parts_of(target: WeightTarget) -> tuple[WeightTarget, ...]:
    """The targets that `interleave` made one of, or `target` itself."""
    if isinstance(target, _InterleavedTarget | _AlternatingTarget):
        return target.targets
    return (target,)


class _AlternatingTarget:
    """Row i goes to target i % n of n, all at once: a loop over rows would take minutes."""

    def __init__(self, targets: Sequence[WeightTarget]) -> None:
        self.targets = tuple(targets)
        self.shape = (sum(each.shape[0] for each in targets), *targets[0].shape[1:])
        self.rows_together = len(targets) * rows_together(targets)
        self.loads_last = loads_last(targets)
        self.device = _device_of(targets)

    def destination(self, start: int, stop: int) -> Tensor | None:
        return None

    def write(self, start: int, rows: Tensor) -> None:
        count = len(self.targets)
        for place, target in enumerate(self.targets):
            target.write(start // count, rows[place::count])


class TransposedTarget:
    """A tensor [columns, rows] of floats, whose rows alternate among `weights` [rows, columns]."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._weights = tuple(weight.detach() for weight in weights)
        rows, columns = self._weights[0].shape
        self.shape: tuple[int, ...] = (columns, len(weights) * rows)

    def destination(self, start: int, stop: int) -> Tensor | None:
        return None

    def write(self, start: int, rows: Tensor) -> None:
        for place, weight in enumerate(self._weights):
            part = rows[:, place :: len(self._weights)].to(weight.device, non_blocking=True)
            RowsTarget(weight.T, start, len(rows)).write(0, part)


def _device_of(targets: Sequence[WeightTarget]) -> torch.device:
    """The device, other than the CPU, on which rows may arrive: where all parts accept them."""
    devices = {getattr(each, "device", _CPU) for each in targets}
    return devices.pop() if len(devices) == 1 else _CPU


class _InterleavedTarget:
    """Distributes the rows of a tensor to several targets; see check_blocks for FP8 blocks."""

    def __init__(self, targets: Sequence[WeightTarget], groups: int) -> None:
        self.targets = tuple(targets)
        self._sizes = [each.shape[0] // groups for each in targets]
        self._starts = [0, *accumulate(self._sizes)]
        self.shape = (groups * self._starts[-1], *targets[0].shape[1:])
        self.rows_together = rows_together(targets)
        self.loads_last = loads_last(targets)
        self.device = _device_of(targets)

    def destination(self, start: int, stop: int) -> Tensor | None:
        slices = list(self._slices(start, stop))
        if len(slices) != 1:
            return None
        target, first, count = slices[0]
        return target.destination(first, first + count)

    def write(self, start: int, rows: Tensor) -> None:
        done = 0
        for target, first, count in self._slices(start, start + len(rows)):
            target.write(first, rows[done : done + count])
            done += count

    def _slices(self, start: int, stop: int) -> Iterator[tuple[WeightTarget, int, int]]:
        """(target, its first row, count) of rows `start` to `stop`, in order."""
        while start < stop:
            group, row = divmod(start, self._starts[-1])
            part = next(i for i, end in enumerate(self._starts[1:]) if row < end)
            inside = row - self._starts[part]
            count = min(self._sizes[part] - inside, stop - start)
            yield self.targets[part], group * self._sizes[part] + inside, count
            start += count
