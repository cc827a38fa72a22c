# SPDX-License-Identifier: Apache-2.0
"""Weights stored in MXFP4, as the experts of gpt-oss are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.layers.weights.fp8_targets import DequantizingTarget
from rtp_llm.layers.weights.shard import Shard
from rtp_llm.layers.weights.stored_config import StoredModules, module_patterns
from rtp_llm.layers.weights.stored_format import NamedTargets, StoredFormat
from rtp_llm.layers.weights.targets import RowsTarget
from rtp_llm.ops.moe.mxfp4_blocks import BLOCK, dequantize_rows

if TYPE_CHECKING:
    from rtp_llm.device import Capabilities, Device

BLOCKS, SCALES = "blocks", "scales"


class Mxfp4(StoredFormat):
    """blocks uint8 [rows, columns / 2], two numbers each, and scales uint8 [rows, columns / 32]."""

    name = "mxfp4"
    title = "MXFP4 blocks"
    column_block = BLOCK
    marker: ClassVar[tuple[str, torch.dtype]] = (BLOCKS, torch.uint8)
    scales_name: ClassVar[str] = SCALES

    def shapes(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        return {self.marker[0]: (rows, columns // 2), self.scales_name: (rows, columns // BLOCK)}

    def weights_in(self, shape: tuple[int, ...]) -> int:
        return 2 * math.prod(shape)

    def shard(
        self, suffix: str, rows: Shard | None, columns: Shard | None
    ) -> tuple[Shard | None, Shard | None]:
        """Columns are divided between blocks. Raises DivisionError if one would be split."""
        if columns is None:
            return rows, None
        blocks = columns.blocks(BLOCK, suffix)
        return rows, blocks if suffix == self.scales_name else blocks.scaled(BLOCK // 2)

    def float_targets(self, weight: Tensor) -> NamedTargets:
        shapes = self.shapes(*weight.shape)
        scales = torch.empty(shapes[self.scales_name], dtype=torch.uint8, device=weight.device)
        yield self.scales_name, RowsTarget(scales)
        name = self.marker[0]
        yield name, DequantizingTarget(weight, scales, dequantize_rows, self, shapes[name])

    def stored_targets(self, blocks: Tensor, scales: Tensor) -> NamedTargets:
        """Targets that keep the bytes: uint8 in the shapes of `shapes`."""
        yield self.marker[0], RowsTarget(blocks)
        yield self.scales_name, RowsTarget(scales)

    def why_experts_dequantized(self, dtype: torch.dtype, device: Device) -> str:
        return why_not_multiplied(dtype, device.capabilities())


def why_not_multiplied(dtype: torch.dtype, capabilities: Capabilities) -> str:
    """Why no kernel multiplies the weights as they are stored, `dtype` being that of activations.

    Empty if one does.
    """
    if ops.has_kernel("mxfp4_grouped_linear", capabilities.torch_type):
        return ""
    if "triton" not in capabilities or not ops.has_kernel(
        "triton_biased_gate_up", capabilities.torch_type
    ):
        return f"no kernel on {capabilities} multiplies them as they are"
    return "float32 products do not run on tensor cores" if dtype is torch.float32 else ""


def read_mxfp4(config: Mapping[str, Any]) -> StoredModules:
    """All modules that have blocks, but for those of `modules_to_not_convert`."""
    kept = module_patterns(config, "modules_to_not_convert")
    return StoredModules(((("Linear",), Mxfp4()),), kept)
