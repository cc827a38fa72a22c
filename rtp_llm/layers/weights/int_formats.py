# SPDX-License-Identifier: Apache-2.0
"""Weights of 4 or 8 bits in groups: GPTQ, AWQ, and pack-quantized of compressed-tensors."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.layers.weights.fp8_targets import Repeated
from rtp_llm.layers.weights.int_targets import (
    CodesTarget,
    GroupedWeight,
    OrderTarget,
    SideBySide,
    ZerosTarget,
)
from rtp_llm.layers.weights.interleaved import interleave
from rtp_llm.layers.weights.shard import Shard
from rtp_llm.layers.weights.stored_format import NamedTargets, StoredFormat, why_no_kernel
from rtp_llm.layers.weights.targets import RowsTarget, WeightTarget
from rtp_llm.ops.gemm.int_groups import WORD_BITS, unpack_words
from rtp_llm.ops.gemm.tiled_wna16_layout import has_kernels, takes
from rtp_llm.ops.gemm.wna16_layout import GROUP_UNIT

if TYPE_CHECKING:
    from rtp_llm.device import Device

Shards = tuple[Shard | None, Shard | None]
# Of the columns in a word of AWQ, which has 0, 2, 4, 6, 1, 3, 5, 7 from the low bits on: the places
# of columns 0 to 7.
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


@dataclass(frozen=True)
class IntGroups(StoredFormat):
    """Codes of `bits` bits; `group` columns of a row share a scale and a zero point (0: all).

    `ordered`: a tensor says which group each column is in; ranks that divide the columns have the
    scales of all groups then, those of all `total` columns of the checkpoint (0: of the layer).
    """

    bits: int = 4
    group: int = 128
    ordered: bool = False
    total: int = 0

    def __post_init__(self) -> None:
        blocks = math.lcm(self.weights_per_entry, 1 if self.ordered else self.group or 1)
        object.__setattr__(self, "row_block", self.weights_per_entry)
        object.__setattr__(self, "column_block", blocks)

    @property
    def weights_per_entry(self) -> int:
        """How many codes are in a word."""
        return WORD_BITS // self.bits

    def weights_in(self, shape: tuple[int, ...]) -> int:
        return math.prod(shape) * self.weights_per_entry

    def added_bytes(self, shape: tuple[int, ...], device: Device) -> int:
        """Scales become float32, and zero points bytes."""
        return 3 * self.weights_in(shape) // self.group if self.group else 0

    def groups(self, columns: int) -> int:
        """How many groups a row of `columns` has."""
        return -(-(self.total or columns) // self.group) if self.group else 1

    def words(self, size: int) -> int:
        """How many words hold `size` codes."""
        return -(-size // self.weights_per_entry)

    def why_dequantized(self, dtype: torch.dtype, device: Device) -> str:
        if has_kernels(dtype, device.capabilities().torch_type):
            return ""
        return why_no_kernel("wna16_linear", device)

    def fits(self, rows: int, columns: int, device: Device) -> bool:
        if self.ordered or ops.has_kernel("wna16_linear", device.capabilities().torch_type):
            return True
        return takes(rows, columns, self.group)

    def why_experts_dequantized(self, dtype: torch.dtype, device: Device) -> str:
        if not ops.has_kernel("wna16_grouped_linear", device.capabilities().torch_type):
            return f"no kernel on {device.name} multiplies experts as they are"
        if not self.of_experts:
            return "experts are multiplied in groups of multiples of 32 that are in order"
        return ""

    @property
    def of_experts(self) -> bool:
        """Whether experts in it are multiplied as they are, where there is a kernel."""
        return self.group % GROUP_UNIT == 0 and not self.ordered

    def float_targets(self, weight: Tensor) -> NamedTargets:
        groups, device = self.groups(weight.shape[1]), weight.device
        shape = weight.shape[0], groups
        scales = torch.empty(shape, device=device)
        zeros = torch.empty(shape, dtype=torch.uint8, device=device)
        order = torch.empty(weight.shape[1], dtype=torch.int32, device=device)
        given = order if self.ordered else None
        yield from self.stored_targets(
            GroupedWeight(weight, scales, zeros, self.bits, self.group, given)
        )

    @abstractmethod
    def stored_targets(self, memory: GroupedWeight) -> NamedTargets:
        """Targets that fill `memory`; its zeros are set here if the checkpoint has none."""

    def columns_of_words(self, columns: Shard | None, name: str) -> Shard | None:
        return columns and columns.blocks(self.weights_per_entry, name)

    def columns_of_groups(self, columns: Shard | None, name: str) -> Shard | None:
        """The shard of groups. Raises DivisionError if one would be split."""
        if columns is None or columns.is_whole or self.ordered:
            return None
        return columns.blocks(self.group, name) if self.group else None


@dataclass(frozen=True)
class OutputsLast(IntGroups):
    """Formats whose tensors have outputs on the second axis: qweight, qzeros, scales and g_idx."""

    marker: ClassVar[tuple[str, torch.dtype]] = ("qweight", torch.int32)

    def interleave(self, suffix: str, targets: Sequence[WeightTarget], groups: int) -> WeightTarget:
        if suffix == "g_idx":
            return Repeated(targets)
        if suffix not in ("qweight", "qzeros", "scales") or len(targets) == 1:
            return interleave(targets, groups)
        return SideBySide(targets, groups)


@dataclass(frozen=True)
class Gptq(OutputsLast):
    """qweight int32 [K / 8, N], qzeros int32 [groups, N / 8], scales [groups, N], g_idx int32 [K].

    (For 4 bits.) `zero_added`: what to add to zero points, 1 in files of version 1. `indexed`:
    whether there is a g_idx.
    """

    zero_added: int = 1
    indexed: bool = True

    name = "gptq"
    title = "GPTQ groups"

    def found_among(self, suffixes: frozenset[str]) -> StoredFormat:
        indexed = "g_idx" in suffixes
        return replace(self, indexed=indexed, ordered=self.ordered and indexed)

    def found_with(self, shape: tuple[int, ...]) -> StoredFormat:
        return replace(self, total=shape[0] * self.weights_per_entry) if self.ordered else self

    def shapes(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        groups = self.groups(columns)
        shapes: dict[str, tuple[int, ...]] = {
            "scales": (groups, rows),
            "qzeros": (groups, self.words(rows)),
            "qweight": (self.words(columns), rows),
        }
        return {**shapes, "g_idx": (columns,)} if self.indexed else shapes

    def rows_and_columns(self, shape: tuple[int, ...]) -> tuple[int, int]:
        rows = math.prod(shape[1:])
        return rows, self.weights_in(shape) // max(1, rows)

    def shard(self, suffix: str, rows: Shard | None, columns: Shard | None) -> Shards:
        if suffix == "qweight":
            return self.columns_of_words(columns, suffix), rows
        if suffix == "g_idx":
            return columns, None
        groups = self.columns_of_groups(columns, suffix)
        return groups, self.columns_of_words(rows, suffix) if suffix == "qzeros" else rows

    def stored_targets(self, memory: GroupedWeight) -> NamedTargets:
        rows, groups = memory.scales.shape
        columns = _columns(memory)
        shapes = self.shapes(rows, columns)
        if self.indexed:
            yield "g_idx", OrderTarget(columns, groups, self.group, memory.group_of)
        yield "scales", RowsTarget(memory.scales.T)
        yield (
            "qzeros",
            ZerosTarget(
                memory.zeros.T, shapes["qzeros"], self._unpack, 1, self.zero_added, self.bits
            ),
        )
        yield (
            "qweight",
            CodesTarget(
                memory,
                self,
                shapes["qweight"],
                lambda words: self._unpack(words.T),
                by_columns=True,
                axis_codes=self.weights_per_entry,
            ),
        )

    def _unpack(self, words: Tensor) -> Tensor:
        return unpack_words(words, self.bits)


@dataclass(frozen=True)
class Awq(OutputsLast):
    """qweight int32 [K, N / 8], qzeros int32 [groups, N / 8], scales [groups, N], of 4 bits."""

    name = "awq"
    title = "AWQ groups"

    def shapes(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        groups, words = self.groups(columns), self.words(rows)
        return {"scales": (groups, rows), "qzeros": (groups, words), "qweight": (columns, words)}

    def rows_and_columns(self, shape: tuple[int, ...]) -> tuple[int, int]:
        columns = math.prod(shape[:1])
        return self.weights_in(shape) // max(1, columns), columns

    def shard(self, suffix: str, rows: Shard | None, columns: Shard | None) -> Shards:
        words = self.columns_of_words(rows, suffix)
        if suffix == "qweight":
            return columns, words
        groups = self.columns_of_groups(columns, suffix)
        return groups, words if suffix == "qzeros" else rows

    def stored_targets(self, memory: GroupedWeight) -> NamedTargets:
        shapes = self.shapes(len(memory.scales), _columns(memory))
        yield "scales", RowsTarget(memory.scales.T)
        yield "qzeros", ZerosTarget(memory.zeros.T, shapes["qzeros"], _unpack_awq)
        yield (
            "qweight",
            CodesTarget(
                memory,
                self,
                shapes["qweight"],
                lambda words: _unpack_awq(words).T,
                by_columns=True,
            ),
        )


@dataclass(frozen=True)
class PackQuantized(IntGroups):
    """weight_packed int32 [N, K / 8], weight_scale [N, groups], and perhaps zero points and g_idx.

    (For 4 bits.) weight_zero_point int32 [N / 8, groups] unless `symmetric`; weight_g_idx int32 [K]
    if `ordered`.
    """

    symmetric: bool = True

    name = "pack_quantized"
    title = "packed groups of integers"
    marker: ClassVar[tuple[str, torch.dtype]] = ("weight_packed", torch.int32)

    def found_among(self, suffixes: frozenset[str]) -> StoredFormat:
        return replace(self, ordered="weight_g_idx" in suffixes)

    def found_with(self, shape: tuple[int, ...]) -> StoredFormat:
        return replace(self, total=shape[1] * self.weights_per_entry) if self.ordered else self

    def shapes(self, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
        groups = self.groups(columns)
        shapes: dict[str, tuple[int, ...]] = {
            "weight_scale": (rows, groups),
            "weight_packed": (rows, self.words(columns)),
        }
        if not self.symmetric:
            shapes["weight_zero_point"] = (self.words(rows), groups)
        return {**shapes, "weight_g_idx": (columns,)} if self.ordered else shapes

    def shard(self, suffix: str, rows: Shard | None, columns: Shard | None) -> Shards:
        if suffix == "weight_packed":
            return rows, self.columns_of_words(columns, suffix)
        if suffix == "weight_g_idx":
            return columns, None
        groups = self.columns_of_groups(columns, suffix)
        return self.columns_of_words(rows, suffix) if "zero" in suffix else rows, groups

    def interleave(self, suffix: str, targets: Sequence[WeightTarget], groups: int) -> WeightTarget:
        return Repeated(targets) if suffix == "weight_g_idx" else interleave(targets, groups)

    def stored_targets(self, memory: GroupedWeight) -> NamedTargets:
        rows, groups = memory.scales.shape
        shapes = self.shapes(rows, _columns(memory))
        if self.ordered:
            order = OrderTarget(_columns(memory), groups, self.group, memory.group_of)
            yield "weight_g_idx", order
        yield "weight_scale", RowsTarget(memory.scales)
        if self.symmetric:
            memory.zeros.fill_(1 << (self.bits - 1))
        else:
            yield (
                "weight_zero_point",
                ZerosTarget(
                    memory.zeros,
                    shapes["weight_zero_point"],
                    lambda words: unpack_words(words.T, self.bits).T,
                    self.weights_per_entry,
                    bits=self.bits,
                ),
            )
        if memory.dequantizes:
            shape = shapes["weight_packed"]
            unpack = CodesTarget(memory, self, shape, lambda words: unpack_words(words, self.bits))
            yield "weight_packed", unpack
        else:
            yield "weight_packed", RowsTarget(memory.weight.view(torch.int32))


def _columns(memory: GroupedWeight) -> int:
    width = memory.weight.shape[1]
    return width if memory.dequantizes else width * 8 // memory.bits


def _unpack_awq(words: Tensor) -> Tensor:
    """int32 [rows, W] -> codes uint8 [rows, 8 W]."""
    codes = unpack_words(words, 4).view(*words.shape, 8)
    return codes[..., list(_AWQ_PLACES)].flatten(1)
