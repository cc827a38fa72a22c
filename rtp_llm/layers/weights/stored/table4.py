# SPDX-License-Identifier: Apache-2.0
"""What formats have in common whose 4-bit codes index a table of 16 numbers."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.layers.weights.stored_format import NamedTargets, StoredFormat
from rtp_llm.ops.moe.mxfp4_blocks import BLOCK

if TYPE_CHECKING:
    from rtp_llm.device import Device


@dataclass(frozen=True)
class Table4Memory:
    """Where the tensors of a weight [N, K] go: codes uint8 [N, K / 2], the even column in the low
    four bits, and scales [N, groups]; see Table4Linear."""

    codes: Tensor
    scales: Tensor
    row_scales: Tensor | None


class Table4Format(StoredFormat):
    """A weight is a number of `table` times the scale of its `column_block` columns."""

    rounds_activations = False
    scales_are_e4m3 = False

    @property
    @abstractmethod
    def table(self) -> tuple[float, ...]:
        """The numbers of the codes 0 to 15."""

    @abstractmethod
    def stored_targets(self, memory: Table4Memory) -> NamedTargets:
        """Targets that keep the codes and the scales."""

    def goes_with(self, other: Table4Format) -> bool:
        """Whether weights of both formats can lie in one matrix."""
        same = self.table == other.table and self.column_block == other.column_block
        return same and self.scales_are_e4m3 == other.scales_are_e4m3

    @property
    def in_blocks(self) -> bool:
        """Whether the kernel takes the groups."""
        return self.scales_are_e4m3 or self.column_block % BLOCK == 0

    def why_dequantized(self, dtype: torch.dtype, device: Device) -> str:
        return self.why_experts_dequantized(dtype, device)

    def why_experts_dequantized(self, dtype: torch.dtype, device: Device) -> str:
        if self.in_blocks and ops.has_kernel("table4_grouped_linear", device.torch_device.type):
            return ""
        return f"no kernel on {device.name} multiplies them as they are"
