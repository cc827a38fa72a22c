# SPDX-License-Identifier: Apache-2.0
"""Stored formats: how the weight of a linear layer lies in a checkpoint."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.layers.weights.interleaved import interleave
from rtp_llm.layers.weights.shard import Shard
from rtp_llm.layers.weights.targets import RowsTarget, WeightTarget

if TYPE_CHECKING:
    from rtp_llm.device import Device

# (suffix of a tensor's name in the checkpoint, target).
NamedTargets = Iterator[tuple[str, WeightTarget]]

WEIGHT_NAME = "weight"
BIAS_NAME = "bias"


def why_no_kernel(operator: str, device: Device) -> str:
    """Why weights do not stay as they are stored if `device` has no kernel of `operator`, which
    multiplies them so; empty if it has one."""
    if ops.has_kernel(operator, device.capabilities().torch_type):
        return ""
    return f"no kernel on {device.name} multiplies them as they are"


class FormatError(ValueError):
    """Parts of one layer are stored in formats that no kind of layer takes together."""


class StoredFormat(ABC):
    """How a weight [rows, columns] lies in a checkpoint, in one tensor or several.

    `title` names the format for users. `row_block` x `column_block` weights share a scale, so that
    neither shards nor interleaved parts may split them. A module has the format if its tensor
    `marker` has the dtype in it. `rounds_activations`: where weights stay as stored, activations
    are quantised, too.
    """

    name: str
    title: str
    row_block: int = 1
    column_block: int = 1
    marker: ClassVar[tuple[str, torch.dtype]]
    rounds_activations: ClassVar[bool] = True

    @abstractmethod
    def shapes(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor that holds a weight [rows, columns], by its name's suffix."""

    def weights_in(self, shape: tuple[int, ...]) -> int:
        """The number of weights in a tensor `marker` of this shape."""
        return math.prod(shape)

    def rows_and_columns(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Those of the weight in a tensor `marker` of this shape."""
        rows = math.prod(shape[:-1])
        return rows, self.weights_in(shape) // max(1, rows)

    @abstractmethod
    def float_targets(self, weight: Tensor) -> NamedTargets:
        """Targets that store the weights' values in `weight` [rows, columns], of a float dtype."""

    def why_dequantized(self, dtype: torch.dtype, device: Device) -> str:
        """Why no layer computes with the weights as they are stored, `dtype` being its results'.

        Empty if layers on `device` do.
        """
        return "no layer takes them as they are"

    def why_experts_dequantized(self, dtype: torch.dtype, device: Device) -> str:
        """The same of weights of experts."""
        return self.why_dequantized(dtype, device)

    def why_embeddings_dequantized(self, dtype: torch.dtype, device: Device) -> str:
        """The same of tables of embeddings."""
        return "embeddings are looked up as floats"

    def fits(self, rows: int, columns: int, device: Device) -> bool:
        """Whether kernels that take the format on `device` take a weight of this size.

        Others become floats. Not asked of experts.
        """
        return True

    def added_bytes(self, shape: tuple[int, ...], device: Device) -> int:
        """What the weights of a `marker` of this shape take besides their bytes in the file, where
        they stay as stored: scales that become wider, say, when they are packed for `device`."""
        return 0

    def found_among(self, suffixes: frozenset[str]) -> StoredFormat:
        """The format under the names that a module's tensors really have, such as the scale's."""
        return self

    def found_with(self, shape: tuple[int, ...]) -> StoredFormat:
        """The format of a weight whose tensor `marker` has this shape in the checkpoint."""
        return self

    def shard(
        self, suffix: str, rows: Shard | None, columns: Shard | None
    ) -> tuple[Shard | None, Shard | None]:
        """The shard of the tensor `suffix`, for a shard of the weight; None: all of an axis."""
        return rows, columns

    def placed(
        self, suffix: str, target: WeightTarget, rows: Shard | None, columns: Shard | None
    ) -> WeightTarget:
        """The target of the tensor `suffix`, where it must know the shard of the weight."""
        return target

    def interleave(self, suffix: str, targets: Sequence[WeightTarget], groups: int) -> WeightTarget:
        """One target for the tensor `suffix` of parts interleaved in `groups` groups."""
        return interleave(targets, groups)


class FloatFormat(StoredFormat):
    """One tensor of any float dtype, which is converted to the layer's."""

    name = "float"
    title = "floats"

    def shapes(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        return {WEIGHT_NAME: (rows, columns)}

    def float_targets(self, weight: Tensor) -> NamedTargets:
        yield WEIGHT_NAME, RowsTarget(weight)


FLOAT = FloatFormat()
