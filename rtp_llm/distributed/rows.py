# SPDX-License-Identifier: Apache-2.0
"""What goes to another rank for a token: hidden state, expert ids and weights as one row of bytes.

One message instead of three. Ids are sent plus one, so that a row of zeros asks for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TokenRows:
    """`x` [N, H], `ids` int32 [N, k] (-1: none), `weights` float32 [N, k]."""

    x: Tensor
    ids: Tensor
    weights: Tensor

    def pack(self) -> Tensor:
        """Pack each token's row into bytes, uint8 [N, bytes]; see `unpack`."""
        parts = (self.x, self.ids + 1, self.weights)
        return torch.cat([_as_bytes(part) for part in parts], dim=1)

    @classmethod
    def unpack(cls, rows: Tensor, hidden: int, dtype: torch.dtype, k: int) -> TokenRows:
        """The inverse of `pack`, for x of `hidden` columns and `dtype`, and `k` experts a token."""
        ends = hidden * dtype.itemsize, hidden * dtype.itemsize + 4 * k
        x, ids, weights = rows[:, : ends[0]], rows[:, ends[0] : ends[1]], rows[:, ends[1] :]
        return cls(
            x.contiguous().view(dtype),
            ids.contiguous().view(torch.int32) - 1,
            weights.contiguous().view(torch.float32),
        )


def _as_bytes(part: Tensor) -> Tensor:
    """[N, C] as uint8 [N, bytes]; flat at first, since a last axis of one entry has any stride."""
    rows, columns = part.shape
    flat = part.contiguous().view(-1).view(torch.uint8)
    return flat.view(rows, columns * part.itemsize)
