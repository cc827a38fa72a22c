# SPDX-License-Identifier: Apache-2.0
"""Targets that dequantise FP8 weights while loading, and that quantise float weights to FP8."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rtp_llm.layers.weights.targets import RowsTarget, WeightTarget

if TYPE_CHECKING:
    from rtp_llm.layers.weights.stored_format import StoredFormat

# (quantised rows, scales of the whole weight, first row) -> float32 rows.
Dequantize = Callable[[Tensor, Tensor, int], Tensor]
# Float rows -> (e4m3 rows, scales).
Quantize = Callable[[Tensor], tuple[Tensor, Tensor]]


class DequantizingTarget:
    """Takes quantised rows and stores them dequantised; `scales` must be loaded before them."""

    loads_last = True

    def __init__(
        self,
        weight: Tensor,
        scales: Tensor,
        dequantize: Dequantize,
        stored: StoredFormat,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        """`shape` is that of the quantised rows, if it is not that of `weight`."""
        self._rows, self._scales, self._dequantize = RowsTarget(weight), scales, dequantize
        self.stored, self.shape = stored, shape or self._rows.shape

    def destination(self, start: int, stop: int) -> Tensor | None:
        return None

    def write(self, start: int, rows: Tensor) -> None:
        numbers = rows.to(self._scales.device, non_blocking=True)
        self._rows.write(start, self._dequantize(numbers, self._scales, start))


class QuantizingTarget:
    """Takes float rows and stores them as e4m3, with a row of scales for `rows_together` rows."""

    def __init__(
        self,
        weight: Tensor,
        scale: Tensor,
        quantize: Quantize,
        dequantize: Dequantize,
        rows_together: int = 1,
    ) -> None:
        self._weight, self._scale = weight.detach(), scale.detach()
        self._quantize, self._dequantize = quantize, dequantize
        self.rows_together = rows_together
        self.shape = tuple(weight.shape)
        self.device = weight.device

    def destination(self, start: int, stop: int) -> Tensor | None:
        return None

    @property
    def stored_bytes(self) -> int:
        return self._weight.nbytes + self._scale.nbytes

    def rounded(self, rows: Tensor) -> Tensor:
        return self._dequantize(*self._quantize(rows), 0)

    def write(self, start: int, rows: Tensor) -> None:
        weight, scale = self._quantize(rows.to(self.device, non_blocking=True))
        self._weight[start : start + len(weight)].copy_(weight)
        band = start // self.rows_together
        self._scale[band : band + len(scale)].copy_(scale)


class FillTarget:
    """Takes one number [1] and stores it in every place of a parameter."""

    shape: tuple[int, ...] = (1,)

    def __init__(self, parameter: Tensor) -> None:
        self._parameter = parameter.detach()

    def destination(self, start: int, stop: int) -> Tensor | None:
        return None

    def write(self, start: int, rows: Tensor) -> None:
        # Filled from the number itself, without waiting for the device.
        number = rows.to(self._parameter.device, torch.float32, non_blocking=True)
        self._parameter.copy_(number.expand(self._parameter.shape))


class Repeated:
    """Gives the same tensor to several targets of its shape."""

    def __init__(self, targets: Sequence[WeightTarget]) -> None:
        self._targets = tuple(targets)
        self.shape = targets[0].shape

    def destination(self, start: int, stop: int) -> Tensor | None:
        return None

    def write(self, start: int, rows: Tensor) -> None:
        for target in self._targets:
            target.write(start, rows)
