# SPDX-License-Identifier: Apache-2.0
"""Weights in the blocks of GGUF files: Q8_0, Q4_K and so on."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rtp_llm.gguf import TensorType
from rtp_llm.gguf.types import TYPES
from rtp_llm.layers.weights.mxfp4 import why_not_multiplied
from rtp_llm.layers.weights.shard import Shard
from rtp_llm.layers.weights.stored_format import NamedTargets, why_no_kernel
from rtp_llm.layers.weights.targets import RowsTarget
from rtp_llm.layers.weights.tiled_format import TiledFormat
from rtp_llm.ops.gguf.blocks import DEQUANTIZERS, dequantize
from rtp_llm.ops.gguf.integers import INTEGERS

if TYPE_CHECKING:
    from rtp_llm.device import Device

BLOCKS = "blocks"
# Layers whose rounded activations cost most of the accuracy: what comes out of a gate has outliers.
_SENSITIVE = frozenset({"down_proj", "lm_head"})


class GgufBlocks(TiledFormat):
    """blocks uint8 [rows, bytes of a row]: a row is a sequence of blocks of the type `kind`."""

    marker = (BLOCKS, torch.uint8)

    def __init__(self, kind: TensorType) -> None:
        self.kind = kind
        self.name = f"gguf_{kind.name.lower()}"
        self.title = f"GGUF {kind.name}"
        self.column_block = kind.elements

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GgufBlocks) and other.kind == self.kind

    def __hash__(self) -> int:
        return hash(self.kind)

    def shapes(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        return {BLOCKS: (rows, columns // self.kind.elements * self.kind.block_bytes)}

    def weights_in(self, shape: tuple[int, ...]) -> int:
        return math.prod(shape) // self.kind.block_bytes * self.kind.elements

    def why_not_as_stored(self, device: Device) -> str:
        return why_no_kernel("gguf_linear", device)

    def why_not_tiled(self, dtype: torch.dtype) -> str:
        if self.kind.name not in INTEGERS:
            return "no kernel for GPUs multiplies this type"
        return super().why_not_tiled(dtype)

    def why_experts_dequantized(self, dtype: torch.dtype, device: Device) -> str:
        if self.kind.name == "MXFP4" and not why_not_multiplied(dtype, device.capabilities()):
            return ""
        return why_no_kernel("gguf_grouped_linear", device)

    def why_embeddings_dequantized(self, dtype: torch.dtype, device: Device) -> str:
        return self.why_dequantized(dtype, device)

    def added_bytes(self, shape: tuple[int, ...], device: Device) -> int:
        kind = INTEGERS.get(self.kind.name)
        if kind is None or not self.why_not_as_stored(device):
            return 0
        weights = self.weights_in(shape)
        in_file = weights // self.kind.elements * self.kind.block_bytes
        return kind.num_bytes(weights) - in_file

    def shard(
        self, suffix: str, rows: Shard | None, columns: Shard | None
    ) -> tuple[Shard | None, Shard | None]:
        """Columns are divided between blocks. Raises DivisionError if one would be split."""
        if columns is None:
            return rows, None
        return rows, columns.blocks(self.kind.elements, suffix).scaled(self.kind.block_bytes)

    def float_targets(self, weight: Tensor) -> NamedTargets:
        yield BLOCKS, GgufTarget(weight, self)


class GgufTarget:
    """Takes rows of blocks and stores their weights in `weight` [rows, columns]."""

    def __init__(self, weight: Tensor, stored: GgufBlocks) -> None:
        self._rows, self._weight, self.stored = RowsTarget(weight), weight, stored
        self.shape = stored.shapes(*weight.shape)[BLOCKS]

    def destination(self, start: int, stop: int) -> Tensor | None:
        return None

    def write(self, start: int, rows: Tensor) -> None:
        kind = self.stored.kind
        blocks = rows.to(self._weight.device, non_blocking=True).view(
            len(rows), -1, kind.block_bytes
        )
        self._rows.write(start, dequantize(kind.name, blocks).flatten(1))


# Type -> format, of all types that are made of blocks and can be computed.
_FORMATS = {
    kind.name: GgufBlocks(kind)
    for kind in TYPES.values()
    if kind.elements > 1 and kind.name in DEQUANTIZERS
}
GGUF_FORMATS = frozenset(stored.name for stored in _FORMATS.values())
# Those of which some are integers that GPUs multiply in tiles.
TILED_FORMATS = frozenset(_FORMATS[name].name for name in INTEGERS)


def activation_bits(activations: str, parts: Iterable[str]) -> int:
    """`activation_bits` of ops.gguf_linear for a layer's parts; `activations` is the setting."""
    if activations == "float":
        return 32
    return 8 if _SENSITIVE.isdisjoint(parts) else 16


def gguf_format(kind: str) -> GgufBlocks:
    """The format of tensors of a type, such as "Q4_K". Raises KeyError for others."""
    return _FORMATS[kind]
