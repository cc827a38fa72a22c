# SPDX-License-Identifier: Apache-2.0
"""What GGUF files change in delta nets: the order of value heads, and decays.

Value heads are stored as [heads of a key head, key heads]; in layers the first of these two axes is
the inner one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rtp_llm.loader.row_changes import RowChange


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
    """Columns of value heads, or whole blocks of them."""

    heads: ValueHeads

    moves: ClassVar[bool] = True

    def apply(self, rows: Tensor) -> Tensor:
        shape = len(rows), self.heads.per_key, self.heads.key_heads, -1
        return rows.view(shape).transpose(1, 2).reshape(rows.shape)
