# SPDX-License-Identifier: Apache-2.0
"""Int8 weights of experts, which stay integers: to the kernel of groups a row is one group."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.int_layout import IntGroupWeights
from rtp_llm.layers.weights.layout import rows_of
from rtp_llm.layers.weights.stored.int8 import Int8Channels
from rtp_llm.layers.weights.stored_format import (
    WEIGHT_NAME,
    FormatError,
    NamedTargets,
    StoredFormat,
)
from rtp_llm.layers.weights.targets import RowsTarget

_ZERO = 128  # codes are numbers plus this


class Int8Experts(IntGroupWeights):
    """weight uint8 [..., rows, columns], the numbers plus 128; scale float32 [..., rows, 1, 2]."""

    formats = frozenset({Int8Channels.name})
    bits, group = 8, 0

    @classmethod
    def fits(cls, stored: Sequence[StoredFormat]) -> bool:
        return True

    def make(self, options: LayerOptions, *outer: int) -> tuple[nn.Parameter, nn.Parameter]:
        rows = sum(self.parts.values())
        weight = options.parameter(*outer, rows, self.columns, dtype=torch.uint8)
        return weight, options.parameter(*outer, rows, 1, 2, dtype=torch.float32)

    def targets(
        self, weight: Tensor, scale: Tensor, part: str, stored: StoredFormat
    ) -> NamedTargets:
        if not isinstance(stored, Int8Channels) or stored.name not in self.formats:
            raise FormatError(f"{part} is stored as {stored.name}, and other parts as int8")
        rows, numbers = (rows_of(each.detach(), self.parts, part) for each in (weight, scale))
        numbers[..., 1].fill_(_ZERO)
        for suffix, target in stored.stored_targets(rows, numbers[..., 0]):
            yield suffix, _CodesTarget(rows) if suffix == WEIGHT_NAME else target


class _CodesTarget(RowsTarget):
    """Takes int8 numbers."""

    def destination(self, start: int, stop: int) -> Tensor | None:
        return None

    def write(self, start: int, rows: Tensor) -> None:
        super().write(start, rows.view(torch.uint8) ^ _ZERO)
