# SPDX-License-Identifier: Apache-2.0
"""FP8 weights (e4m3) with a scale for each block, each row (output channel) or each tensor."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from rtp_llm.layers.weights.fp8_targets import DequantizingTarget, FillTarget, Repeated
from rtp_llm.layers.weights.interleaved import interleave
from rtp_llm.layers.weights.shard import Shard
from rtp_llm.layers.weights.stored_format import (
    WEIGHT_NAME,
    NamedTargets,
    StoredFormat,
    why_no_kernel,
)
from rtp_llm.layers.weights.targets import RowsTarget, WeightTarget
from rtp_llm.ops.fp8.fp8_blocks import BLOCK, E4M3, num_blocks
from rtp_llm.quantization.fp8 import dequantize_rows
from rtp_llm.quantization.fp8_channels import dequantize_channels

if TYPE_CHECKING:
    from rtp_llm.device import Device

# Either is multiplied with the numbers.
SCALE_NAMES = ("weight_scale_inv", "weight_scale")


def why_not_multiplied(dtype: torch.dtype, device: Device) -> str:
    """Why FP8 weights are not multiplied as FP8; empty if they are."""
    if dtype is not torch.bfloat16:
        return "products of 8-bit floats give bfloat16 only; see --dtype"
    return device.supports("fp8_products").reason


@dataclass(frozen=True)
class Fp8Format(StoredFormat):
    """weight e4m3 [rows, columns] and its scales, the tensor `scale_name`.

    Checkpoints may also hold scales for activations, which are not read: activations get a scale
    for each token as they come, which is at least as exact.
    """

    scale_name: str = SCALE_NAMES[0]

    marker: ClassVar[tuple[str, torch.dtype]] = (WEIGHT_NAME, E4M3)

    @abstractmethod
    def scale_shape(self, rows: int, columns: int) -> tuple[int, ...]:
        """The shape of the scales of a weight [rows, columns]."""

    @abstractmethod
    def scale_target(self, scale: Tensor) -> WeightTarget:
        """The target that loads the scales as a layer of this format keeps them."""

    def why_dequantized(self, dtype: torch.dtype, device: Device) -> str:
        stays = not why_no_kernel("fp8_weight_linear", device)
        return "" if stays else self.why_experts_dequantized(dtype, device)

    def why_experts_dequantized(self, dtype: torch.dtype, device: Device) -> str:
        return why_not_multiplied(dtype, device)

    def found_among(self, suffixes: frozenset[str]) -> StoredFormat:
        found = (name for name in SCALE_NAMES if name in suffixes)
        return type(self)(next(found, self.scale_name))

    def shapes(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        return {WEIGHT_NAME: (rows, columns), self.scale_name: self.scale_shape(rows, columns)}

    def stored_targets(self, weight: Tensor, scale: Tensor) -> NamedTargets:
        """Targets that keep the weight as it is stored."""
        yield WEIGHT_NAME, RowsTarget(weight)
        yield self.scale_name, self.scale_target(scale)


class Fp8Block(Fp8Format):
    """A scale for each block of 128 x 128: scales [rows / 128, columns / 128], rounded up."""

    name = "fp8_block"
    title = "FP8 blocks"
    row_block = column_block = BLOCK

    def scale_shape(self, rows: int, columns: int) -> tuple[int, ...]:
        return num_blocks(rows), num_blocks(columns)

    def scale_target(self, scale: Tensor) -> WeightTarget:
        return RowsTarget(scale)

    def shard(
        self, suffix: str, rows: Shard | None, columns: Shard | None
    ) -> tuple[Shard | None, Shard | None]:
        if suffix != self.scale_name:
            return rows, columns
        return rows and rows.blocks(BLOCK, suffix), columns and columns.blocks(BLOCK, suffix)

    def float_targets(self, weight: Tensor) -> NamedTargets:
        scales = torch.empty(self.scale_shape(*weight.shape), device=weight.device)
        yield self.scale_name, RowsTarget(scales)
        yield WEIGHT_NAME, DequantizingTarget(weight, scales, dequantize_rows, self)


class Fp8Channel(Fp8Format):
    """A scale for each row: scales [rows, 1]. A shard of columns needs all of its rows' scales."""

    name = "fp8_channel"
    title = "FP8 channels"

    def scale_shape(self, rows: int, columns: int) -> tuple[int, ...]:
        return rows, 1

    def scale_target(self, scale: Tensor) -> WeightTarget:
        return RowsTarget(scale)

    def shard(
        self, suffix: str, rows: Shard | None, columns: Shard | None
    ) -> tuple[Shard | None, Shard | None]:
        return rows, None if suffix == self.scale_name else columns

    def float_targets(self, weight: Tensor) -> NamedTargets:
        scales = torch.empty(len(weight), 1, device=weight.device)
        yield self.scale_name, self.scale_target(scales)
        yield WEIGHT_NAME, DequantizingTarget(weight, scales, dequantize_channels, self)


class Fp8Tensor(Fp8Channel):
    """One scale [1] for the whole tensor, kept as the scale of each of its rows.

    So the parts of a fused layer keep their scales, and nothing is quantised again.
    """

    name = "fp8_tensor"
    title = "FP8 tensors"

    def scale_shape(self, rows: int, columns: int) -> tuple[int, ...]:
        return (1,)

    def scale_target(self, scale: Tensor) -> WeightTarget:
        return FillTarget(scale)

    def shard(
        self, suffix: str, rows: Shard | None, columns: Shard | None
    ) -> tuple[Shard | None, Shard | None]:
        return (None, None) if suffix == self.scale_name else (rows, columns)

    def interleave(self, suffix: str, targets: Sequence[WeightTarget], groups: int) -> WeightTarget:
        return Repeated(targets) if suffix == self.scale_name else interleave(targets, groups)


class WeightsOnly(Fp8Format):
    """Formats whose activations are floats: products of FP8 would round them."""

    def why_experts_dequantized(self, dtype: torch.dtype, device: Device) -> str:
        return "their activations are not quantised, and no kernel multiplies floats with FP8"


class Fp8BlockWeights(WeightsOnly, Fp8Block):
    """Fp8Block with activations in floats."""

    name = "fp8_block_weight"
    title = "FP8 weights in blocks"


class Fp8ChannelWeights(WeightsOnly, Fp8Channel):
    """Fp8Channel with activations in floats."""

    name = "fp8_channel_weight"
    title = "FP8 weights with scales of channels"


class Fp8TensorWeights(WeightsOnly, Fp8Tensor):
    """Fp8Tensor with activations in floats."""

    name = "fp8_tensor_weight"
    title = "FP8 weights with scales of tensors"
