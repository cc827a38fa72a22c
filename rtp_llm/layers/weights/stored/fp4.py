# SPDX-License-Identifier: Apache-2.0
"""NVFP4: e2m1 numbers with an e4m3 scale for each 16 of a row and one scale of the tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.layers.weights.fp8_targets import DequantizingTarget, FillTarget, Repeated
from rtp_llm.layers.weights.interleaved import interleave
from rtp_llm.layers.weights.mxfp4 import Mxfp4
from rtp_llm.layers.weights.shard import Shard
from rtp_llm.layers.weights.stored.table4 import Table4Format, Table4Memory
from rtp_llm.layers.weights.stored_format import WEIGHT_NAME, NamedTargets, why_no_kernel
from rtp_llm.layers.weights.targets import RowsTarget, WeightTarget
from rtp_llm.layers.weights.tiled_format import TiledFormat
from rtp_llm.ops.fp8.fp8_blocks import E4M3
from rtp_llm.ops.gemm.nvfp4 import BLOCK, dequantize_rows
from rtp_llm.ops.moe.mxfp4_blocks import E2M1

if TYPE_CHECKING:
    from rtp_llm.device import Capabilities, Device

_SCALE_NAME = "weight_scale"
_PACKED_NAME = "weight_packed"


class _Fp4(TiledFormat):
    """Formats whose numbers are integers once they are doubled."""

    def why_not_as_stored(self, device: Device) -> str:
        return self.why_experts_dequantized(torch.bfloat16, device)


class Nvfp4(_Fp4, Table4Format):
    """weight uint8 [rows, columns / 2], weight_scale e4m3 [rows, columns / 16], weight_scale_2 [1].

    As ModelOpt stores them. Stored scales of activations are not read: activations stay floats.
    """

    name = "nvfp4"
    title = "NVFP4 blocks"
    column_block = BLOCK
    table = E2M1
    scales_are_e4m3 = True
    marker: ClassVar[tuple[str, torch.dtype]] = (WEIGHT_NAME, torch.uint8)
    whole_scale: ClassVar[str] = "weight_scale_2"
    divides: ClassVar[bool] = False  # whether blocks' scales are divided by the tensor's

    def shapes(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        return {
            self.marker[0]: (rows, columns // 2),
            _SCALE_NAME: (rows, columns // BLOCK),
            self.whole_scale: (1,),
        }

    def weights_in(self, shape: tuple[int, ...]) -> int:
        return 2 * math.prod(shape)

    def shard(
        self, suffix: str, rows: Shard | None, columns: Shard | None
    ) -> tuple[Shard | None, Shard | None]:
        """Columns are divided between blocks. Raises DivisionError if one would be split."""
        if suffix == self.whole_scale:
            return None, None
        blocks = columns and columns.blocks(BLOCK, suffix)
        return rows, blocks if suffix == _SCALE_NAME else blocks and blocks.scaled(BLOCK // 2)

    def interleave(self, suffix: str, targets: Sequence[WeightTarget], groups: int) -> WeightTarget:
        return Repeated(targets) if suffix == self.whole_scale else interleave(targets, groups)

    def float_targets(self, weight: Tensor) -> NamedTargets:
        shapes = self.shapes(*weight.shape)
        scales = torch.empty(shapes[_SCALE_NAME], dtype=E4M3, device=weight.device)
        whole = torch.empty(1, device=weight.device)

        def dequantize(packed: Tensor, scales: Tensor, start: int) -> Tensor:
            of_rows = scales[start : start + len(packed)].float()
            return dequantize_rows(packed, of_rows / whole if self.divides else of_rows * whole)

        yield _SCALE_NAME, RowsTarget(scales)
        yield self.whole_scale, FillTarget(whole)
        shape = shapes[self.marker[0]]
        yield self.marker[0], DequantizingTarget(weight, scales, dequantize, self, shape)

    def stored_targets(self, memory: Table4Memory) -> NamedTargets:
        assert memory.row_scales is not None
        whole = _InverseTarget if self.divides else FillTarget
        yield self.marker[0], RowsTarget(memory.codes)
        yield _SCALE_NAME, RowsTarget(memory.scales.view(E4M3))
        yield self.whole_scale, whole(memory.row_scales)

    def added_bytes(self, shape: tuple[int, ...], device: Device) -> int:
        if not self.why_not_as_stored(device):
            return math.prod(shape[:-1]) * torch.float32.itemsize  # a scale of each row
        # In tiles of 6 bits, and scales of 16.
        return self.weights_in(shape) // BLOCK * (12 + 2 - 8 - 1)


class _InverseTarget(FillTarget):
    """Takes a number that divides."""

    def write(self, start: int, rows: Tensor) -> None:
        super().write(start, 1 / rows.float())


class PackedNvfp4(Nvfp4):
    """nvfp4-pack-quantized of compressed-tensors, whose global scale divides."""

    marker = (_PACKED_NAME, torch.uint8)
    whole_scale = "weight_global_scale"
    divides = True


class PackedMxfp4(_Fp4, Mxfp4):
    """mxfp4-pack-quantized of compressed-tensors: MXFP4 under other names, in any layer."""

    name = "mxfp4_packed"
    marker = (_PACKED_NAME, torch.uint8)
    scales_name = _SCALE_NAME

    rounds_activations = False

    def why_experts_dequantized(self, dtype: torch.dtype, device: Device) -> str:
        return why_no_kernel("mxfp4_grouped_linear", device)

    def added_bytes(self, shape: tuple[int, ...], device: Device) -> int:
        if multiplies_mxfp4(device.capabilities()):
            return 0
        return self.weights_in(shape) // 32 * (20 + 2 - 16 - 1)  # of 5 bits, and scales of 16


def multiplies_mxfp4(capabilities: Capabilities) -> bool:
    """Whether layers, and experts of any activation, are multiplied in MXFP4."""
    return ops.has_kernel("mxfp4_grouped_linear", capabilities.torch_type)
