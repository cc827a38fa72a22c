# SPDX-License-Identifier: Apache-2.0
"""What GGUF files change in delta nets: the order of value heads, and decays.

Value heads are stored as [heads of a key head, key heads]; in layers the first of these two axes is
the inner one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rtp_llm.gguf import TensorType
from rtp_llm.loader.row_changes import RowChange
from rtp_llm.ops.gguf.blocks import dequantize


def floats(kind: TensorType, rows: Tensor) -> Tensor:
    """The weights of rows of blocks, float32 [rows, columns]."""
    return dequantize(kind.name, rows.view(len(rows), -1, kind.block_bytes)).flatten(1)


@dataclass(frozen=True)
class ValueHeads:
    """`key_heads` with `per_key` value heads each."""

    key_heads: int
    per_key: int


@dataclass(frozen=True)
class ValueRows(RowChange):
    """Rows of value heads, `size` each, from row `first` to the last one; `whole` rows in all."""

    heads: ValueHeads
    size: int
    whole: int
    first: int = 0

    moves: ClassVar[bool] = True

    @property
    def rows_together(self) -> int:
        return self.whole

    def apply(self, rows: Tensor) -> Tensor:
        changed = rows.clone()
        shape = self.heads.per_key, self.heads.key_heads, self.size, *rows.shape[1:]
        values = rows[self.first :].reshape(shape).transpose(0, 1)
        changed[self.first :] = values.reshape(rows[self.first :].shape)
        return changed


@dataclass(frozen=True)
class Decays(ValueRows):
    """-exp(A_log) becomes A_log."""

    def apply(self, rows: Tensor) -> Tensor:
        return super().apply(rows.float().neg().log())


@dataclass(frozen=True)
class ValueColumns(RowChange):
    """Columns of value heads, `size` each. Blocks of `kind` that would be cut become floats."""

    heads: ValueHeads
    size: int
    kind: TensorType

    moves: ClassVar[bool] = True

    @property
    def makes_floats(self) -> bool:
        return self.size % self.kind.elements != 0

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        if not self.makes_floats:
            return stored
        return stored[0], self.heads.key_heads * self.heads.per_key * self.size

    def apply(self, rows: Tensor) -> Tensor:
        if self.makes_floats:
            rows = floats(self.kind, rows)
        shape = len(rows), self.heads.per_key, self.heads.key_heads, -1
        return rows.view(shape).transpose(1, 2).reshape(rows.shape)
