# SPDX-License-Identifier: Apache-2.0
"""How FP8 weights of several parts lie in memory, in a linear layer or for each of many experts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.fp8_formats import Fp8Format
from rtp_llm.layers.weights.fp8_targets import QuantizingTarget
from rtp_llm.layers.weights.layout import WeightLayout
from rtp_llm.layers.weights.stored_format import (
    FLOAT,
    WEIGHT_NAME,
    FormatError,
    NamedTargets,
    StoredFormat,
)
from rtp_llm.ops.fp8.fp8_blocks import BLOCK, E4M3, num_blocks
from rtp_llm.quantization.fp8 import BlockRows, dequantize_rows, padded, quantize_blocks
from rtp_llm.quantization.fp8_channels import dequantize_channels, quantize_channels


class Fp8Layout(WeightLayout):
    """weight e4m3 and float32 scales. Floats that are loaded into it are quantised."""

    @classmethod
    def takes(cls, options: LayerOptions) -> bool:
        return options.multiplies_fp8 and options.quantization in ("none", "fp8")

    @abstractmethod
    def slices(self, weight: Tensor, scale: Tensor, part: str) -> tuple[Tensor, Tensor]:
        """The slices of weight [rows, columns] and scales that belong to `part`."""

    @abstractmethod
    def quantizing_target(self, weight: Tensor, scale: Tensor) -> QuantizingTarget:
        """The target that quantises a part's float rows."""

    def targets(
        self, weight: Tensor, scale: Tensor, part: str, stored: StoredFormat
    ) -> NamedTargets:
        """See WeightLayout; FormatError unless the format is float or one of `formats`."""
        weight, scale = self.slices(weight.detach(), scale.detach(), part)
        if stored is FLOAT:
            yield WEIGHT_NAME, self.quantizing_target(weight, scale)
        elif isinstance(stored, Fp8Format) and stored.name in self.formats:
            yield from stored.stored_targets(weight, scale)
        else:
            kept = " and ".join(sorted(self.formats))
            raise FormatError(f"{part} is stored as {stored.name}, and other parts as {kept}")


class Fp8Blocks(Fp8Layout):
    """Scales [..., rows / 128, columns / 128]; each part begins at a block boundary.

    Parts and columns are padded with zeros to whole blocks (see BlockRows).
    """

    formats = frozenset({"fp8_block"})

    def __init__(
        self, parts: Mapping[str, int], columns: int, stored: Sequence[StoredFormat] = ()
    ) -> None:
        super().__init__(parts, columns, stored)
        self.rows = BlockRows(tuple(parts.values()))
        self._starts = dict(zip(parts, self.rows.starts, strict=True))

    def make(self, options: LayerOptions, *outer: int) -> tuple[nn.Parameter, nn.Parameter]:
        rows, columns = self.rows.total, padded(self.columns)
        weight = options.parameter(*outer, rows, columns, dtype=E4M3)
        if (rows, columns) != (sum(self.parts.values()), self.columns):
            weight.data.view(torch.uint8).zero_()
        scales = (*outer, rows // BLOCK, columns // BLOCK)
        return weight, options.parameter(*scales, dtype=torch.float32)

    def slices(self, weight: Tensor, scale: Tensor, part: str) -> tuple[Tensor, Tensor]:
        start, rows = self._starts[part], self.parts[part]
        weight = weight.narrow(0, start, rows).narrow(1, 0, self.columns)
        return weight, scale.narrow(0, start // BLOCK, num_blocks(rows))

    def quantizing_target(self, weight: Tensor, scale: Tensor) -> QuantizingTarget:
        return QuantizingTarget(weight, scale, quantize_blocks, dequantize_rows, BLOCK)


class Fp8Channels(Fp8Layout):
    """Scales [..., rows, 1]; nothing is padded."""

    formats = frozenset({"fp8_channel", "fp8_tensor"})

    def __init__(
        self, parts: Mapping[str, int], columns: int, stored: Sequence[StoredFormat] = ()
    ) -> None:
        super().__init__(parts, columns, stored)
        self._starts = dict(zip(parts, accumulate(parts.values(), initial=0), strict=False))

    def make(self, options: LayerOptions, *outer: int) -> tuple[nn.Parameter, nn.Parameter]:
        rows = sum(self.parts.values())
        weight = options.parameter(*outer, rows, self.columns, dtype=E4M3)
        return weight, options.parameter(*outer, rows, 1, dtype=torch.float32)

    def slices(self, weight: Tensor, scale: Tensor, part: str) -> tuple[Tensor, Tensor]:
        start, rows = self._starts[part], self.parts[part]
        return weight.narrow(0, start, rows), scale.narrow(0, start, rows)

    def quantizing_target(self, weight: Tensor, scale: Tensor) -> QuantizingTarget:
        return QuantizingTarget(weight, scale, quantize_channels, dequantize_channels)
