# SPDX-License-Identifier: Apache-2.0
"""Integer weights of experts in groups, which stay as they are stored."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rtp_llm import ops
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.int_formats import Awq, Gptq, IntGroups, PackQuantized
from rtp_llm.layers.weights.int_targets import GroupedWeight
from rtp_llm.layers.weights.layout import WeightLayout, rows_of
from rtp_llm.layers.weights.stored_format import FormatError, NamedTargets, StoredFormat


class IntGroupWeights(WeightLayout):
    """weight uint8 [..., rows, columns x bits / 8]; scale float32 [..., rows, groups, 2].

    Of the last axis one number is the scale, and the other the zero point. See
    rtp_llm.ops.gemm.int_groups. All parts of all experts have `stored` in common.
    """

    formats = frozenset({Gptq.name, Awq.name, PackQuantized.name})

    @classmethod
    def takes(cls, options: LayerOptions) -> bool:
        wanted = options.keeps_stored and options.quantization == "none"
        return wanted and ops.has_kernel("wna16_grouped_linear", options.device.type)

    @classmethod
    def fits(cls, stored: Sequence[StoredFormat]) -> bool:
        first = stored[0]
        return isinstance(first, IntGroups) and first.of_experts and set(stored) == {first}

    def make(self, options: LayerOptions, *outer: int) -> tuple[nn.Parameter, nn.Parameter]:
        stored, rows = self.kept, sum(self.parts.values())
        width = self.columns * stored.bits // 8
        weight = options.parameter(*outer, rows, width, dtype=torch.uint8)
        groups = stored.groups(self.columns)
        return weight, options.parameter(*outer, rows, groups, 2, dtype=torch.float32)

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return self.kept.bits

    @property
    def group(self) -> int:
        """Columns of a group; 0: a row is one."""
        return self.kept.group

    @property
    def kept(self) -> IntGroups:
        """The format of all of them."""
        stored = self.stored[0]
        assert isinstance(stored, IntGroups)
        return stored

    def targets(
        self, weight: Tensor, scale: Tensor, part: str, stored: StoredFormat
    ) -> NamedTargets:
        if stored != self.kept:
            kept = self.kept
            raise FormatError(
                f"{part} is stored as {stored}, and the same part of another expert as {kept}"
            )
        rows, numbers = (rows_of(each.detach(), self.parts, part) for each in (weight, scale))
        memory = GroupedWeight(
            rows, numbers[..., 0], numbers[..., 1], self.kept.bits, self.kept.group
        )
        yield from self.kept.stored_targets(memory)
