# SPDX-License-Identifier: Apache-2.0
"""Targets for FP8 weights of a checkpoint, and for float weights quantised to FP8 on loading."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from rtp_llm.layers.weights.targets import RowsTarget, WeightTarget
from rtp_llm.ops.fp8.fp8_blocks import BLOCK, num_blocks
from rtp_llm.quantization.fp8 import (
    SCALE_NAME,
    WEIGHT_NAME,
    dequantize_rows,
    quantize_blocks,
)

NamedTargets = Iterator[tuple[str, WeightTarget]]


def fp8_targets(weight: Tensor, scale: Tensor, stored: bool) -> NamedTargets:
    """(name suffix, target) pairs for a weight e4m3 [N, K] and its scales [N / 128, K / 128].

    `stored`: the checkpoint has both; otherwise it has a float weight, which is quantised.
    """
    if not stored:
        yield WEIGHT_NAME, _QuantizingTarget(weight, scale)
        return
    yield WEIGHT_NAME, RowsTarget(weight)
    yield SCALE_NAME, RowsTarget(scale)


def float_targets(weight: Tensor, stored: bool) -> NamedTargets:
    """(name suffix, target) pairs for a weight [N, K] of a float dtype.

    `stored`: the checkpoint has it in FP8 blocks, which are dequantised; the scales must be loaded
    before the weight's rows.
    """
    if not stored:
        yield WEIGHT_NAME, RowsTarget(weight)
        return
    rows, columns = weight.shape
    scales = torch.empty(num_blocks(rows), num_blocks(columns), device=weight.device)
    yield SCALE_NAME, RowsTarget(scales)
    yield WEIGHT_NAME, DequantizingTarget(weight, scales)


class DequantizingTarget:
    """Takes e4m3 rows and stores them dequantised."""

    def __init__(self, weight: Tensor, scales: Tensor) -> None:
        self._place, self._scales = RowsTarget(weight), scales
        self.shape = self._place.shape

    def destination(self, start: int, stop: int) -> Tensor | None:
        return None

    def write(self, start: int, rows: Tensor) -> None:
        numbers = rows.to(self._scales.device, non_blocking=True)
        self._place.write(start, dequantize_rows(numbers, self._scales, start))


class _QuantizingTarget:
    """Takes float rows, whole blocks at a time, and stores them as e4m3 with scales."""

    rows_together = BLOCK

    def __init__(self, weight: Tensor, scale: Tensor) -> None:
        self._weight, self._scale = weight.detach(), scale.detach()
        self.shape = tuple(weight.shape)
        self.device = weight.device

    def destination(self, start: int, stop: int) -> Tensor | None:
        return None

    def write(self, start: int, rows: Tensor) -> None:
        weight, scale = quantize_blocks(rows.to(self.device, non_blocking=True))
        self._weight[start : start + len(weight)].copy_(weight)
        band = start // BLOCK
        self._scale[band : band + len(scale)].copy_(scale)
