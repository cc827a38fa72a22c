# SPDX-License-Identifier: Apache-2.0
"""Linear layers with int8 weights, stored or quantised row by row on loading; packed at the end."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from rtp_llm import ops
from rtp_llm.layers.linear.base import Linear
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.stored.int8 import Int8Channels
from rtp_llm.layers.weights.targets import WeightTarget
from rtp_llm.quantization.int8 import GROUP_SIZE, dequantize_rows, pack, quantize_rows


class Int8Linear(Linear):
    """Int8 weight with a float32 scale per GROUP_SIZE columns of a row; nothing else is rounded.

    Before finish_loading, weight is [rows, columns] and scale [rows, groups]; afterwards both have
    the layout of the kernel.
    """

    def make_weight(self, options: LayerOptions) -> None:
        groups = -(-self.columns // GROUP_SIZE)
        self.weight = options.parameter(self.rows, self.columns, dtype=torch.int8)
        self.scale = options.parameter(self.rows, groups, dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        return ops.int8_linear(x, self.weight, self.scale, self.bias)

    def part_targets(self, name: str, first: int) -> Iterator[tuple[str, WeightTarget]]:
        rows = self.parts[name]
        weight, scale = (part.detach().narrow(0, first, rows) for part in (self.weight, self.scale))
        stored = self.formats[name]
        if isinstance(stored, Int8Channels):
            yield from stored.stored_targets(weight, scale)
        else:
            yield "weight", _QuantizingTarget(weight, scale)

    def finish_loading(self) -> None:
        weight, scale = pack(self.weight, self.scale)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.scale = nn.Parameter(scale, requires_grad=False)


class W8A8Int8Linear(Int8Linear):
    """Int8Linear with rows of x quantised on the fly too, GROUP_SIZE columns at a time."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.w8a8_int8_linear(x, self.weight, self.scale, self.bias)


class _QuantizingTarget:
    """Takes floating-point rows and stores them as int8 with scales."""

    def __init__(self, weight: Tensor, scale: Tensor) -> None:
        self._weight, self._scale = weight, scale
        self.shape = tuple(weight.shape)

    def destination(self, start: int, stop: int) -> Tensor | None:
        return None

    @property
    def stored_bytes(self) -> int:
        return self._weight.nbytes + self._scale.nbytes

    def rounded(self, rows: Tensor) -> Tensor:
        return dequantize_rows(*quantize_rows(rows))

    def write(self, start: int, rows: Tensor) -> None:
        weight, scale = quantize_rows(rows)
        span = slice(start, start + rows.shape[0])
        self._weight[span].copy_(weight)
        self._scale[span].copy_(scale)
