# SPDX-License-Identifier: Apache-2.0
"""The location of a tensor in a checkpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from rtp_llm.loader.row_changes import RowChange


@dataclass(frozen=True)
class TensorEntry:
    """One tensor, which occupies `size` bytes at `offset` of `file`.

    `change`: what has to be done to its rows (None: nothing).
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    file: Path
    offset: int
    change: RowChange | None = None

    @property
    def loaded_shape(self) -> tuple[int, ...]:
        """The shape after the change."""
        return self.shape if self.change is None else self.change.shape(self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of one entry of the first axis."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize
