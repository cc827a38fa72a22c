# SPDX-License-Identifier: Apache-2.0
"""Int8 weights with a scale for each row (output channel) or tensor: llm-compressor, bitsandbytes.

The numbers stay int8 where the device multiplies them. Activations are then quantised in groups of
64 channels as they come, at least as exactly as the checkpoints ask for; stored scales and zero
points of activations are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.layers.weights.fp8_targets import DequantizingTarget, FillTarget, Repeated
from rtp_llm.layers.weights.interleaved import interleave
from rtp_llm.layers.weights.shard import Shard
from rtp_llm.layers.weights.stored_format import WEIGHT_NAME, NamedTargets, StoredFormat
from rtp_llm.layers.weights.targets import RowsTarget, WeightTarget
from rtp_llm.ops.gemm.int8_layout import GROUP_SIZE

if TYPE_CHECKING:
    from rtp_llm.device import Device


@dataclass(frozen=True)
class Int8Channels(StoredFormat):
    """weight int8 [rows, columns] and scales [rows, 1], or one [1] of the tensor (`per_tensor`).

    Activations are quantised too (W8A8). A weight is number x scale x `factor`.
    """

    scale_name: str = "weight_scale"
    per_tensor: bool = False
    factor: float = 1.0

    name = "int8_channel"
    title = "int8 channels"
    operator: ClassVar[str] = "w8a8_int8_linear"
    marker: ClassVar[tuple[str, torch.dtype]] = (WEIGHT_NAME, torch.int8)

    def shapes(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        scales = (1,) if self.per_tensor else (rows, 1)
        return {WEIGHT_NAME: (rows, columns), self.scale_name: scales}

    def shard(
        self, suffix: str, rows: Shard | None, columns: Shard | None
    ) -> tuple[Shard | None, Shard | None]:
        if suffix != self.scale_name:
            return rows, columns
        return None if self.per_tensor else rows, None

    def interleave(self, suffix: str, targets: Sequence[WeightTarget], groups: int) -> WeightTarget:
        if self.per_tensor and suffix == self.scale_name:
            return Repeated(targets)
        return interleave(targets, groups)

    def stored_targets(self, weight: Tensor, scale: Tensor) -> NamedTargets:
        """Targets that keep the numbers; scale [rows, groups] gets that of its row everywhere."""
        yield WEIGHT_NAME, RowsTarget(weight)
        yield self.scale_name, self._scale_target(scale)

    def float_targets(self, weight: Tensor) -> NamedTargets:
        scales = torch.empty(len(weight), 1, device=weight.device)
        yield self.scale_name, self._scale_target(scales, factor=1.0)
        yield WEIGHT_NAME, DequantizingTarget(weight, scales, self._dequantize, self)

    def _scale_target(self, scale: Tensor, factor: float | None = None) -> WeightTarget:
        if self.per_tensor:
            return FillTarget(scale)
        return _ScaleTarget(scale, self.factor if factor is None else factor)

    def _dequantize(self, numbers: Tensor, scales: Tensor, start: int) -> Tensor:
        # In the order of bitsandbytes: its factor is not a power of two.
        weight = numbers.float().mul_(scales[start : start + len(numbers)])
        return weight if self.factor == 1 else weight.mul_(self.factor)

    def added_bytes(self, shape: tuple[int, ...], device: Device) -> int:
        of_group = torch.float32.itemsize  # its scale
        return self.weights_in(shape) // GROUP_SIZE * of_group

    def why_dequantized(self, dtype: torch.dtype, device: Device) -> str:
        if ops.has_kernel(self.operator, device.torch_device.type):
            return ""
        return f"no kernel on {device.name} multiplies int8 weights"

    def why_experts_dequantized(self, dtype: torch.dtype, device: Device) -> str:
        if ops.has_kernel("wna16_grouped_linear", device.torch_device.type):
            return ""
        return f"no kernel on {device.name} multiplies experts as they are"


class Int8Weights(Int8Channels):
    """The same, with activations in floats (W8A16)."""

    name = "int8_weight"
    title = "int8 weights"
    operator = "int8_linear"

    def why_experts_dequantized(self, dtype: torch.dtype, device: Device) -> str:
        return "the products of experts with int8 weights would round their activations"


class _ScaleTarget:
    """Takes scales [rows, 1] and stores each, times `factor`, in all columns of its row."""

    def __init__(self, scale: Tensor, factor: float) -> None:
        self._scale, self._factor = scale.detach(), factor
        self.shape: tuple[int, ...] = (len(scale), 1)

    def destination(self, start: int, stop: int) -> Tensor | None:
        return None

    def write(self, start: int, rows: Tensor) -> None:
        part = self._scale[start : start + len(rows)]
        part.copy_((rows.float() * self._factor).expand_as(part))
