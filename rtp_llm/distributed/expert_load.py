# SPDX-License-Identifier: Apache-2.0
"""How often each logical expert was chosen, counted on the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor


class ExpertLoad:
    """Counts int64 [layers, experts] that steps add to, without reading anything back.

    `rows`, int64 [T, 1], is 1 where a row of the step holds a token, else 0; None: all rows do.
    """

    def __init__(self, num_layers: int, num_experts: int, device: torch.device) -> None:
        self.rows: Tensor | None = None
        self._counts = torch.zeros(num_layers, num_experts, dtype=torch.int64, device=device)

    def counter(self, layer: int) -> Callable[[Tensor, Tensor], None]:
        """Adds the choices of a batch of that layer: ids [T, k] of logical experts, weights."""
        counts = self._counts[layer]

        def count(ids: Tensor, weights: Tensor) -> None:
            rows = self.rows
            if rows is None:
                rows = torch.ones_like(ids[:, :1], dtype=torch.int64)
            counts.index_add_(0, ids.reshape(-1), rows.expand_as(ids).reshape(-1))

        return count

    def take(self) -> Tensor:
        """Return the counts so far, on the host, and reset them. Waits for the device."""
        taken = self._counts.cpu().clone()
        self._counts.zero_()
        return taken


class LoadWindow:
    """The sum of the last `size` samples of counts."""

    def __init__(self, size: int) -> None:
        self._samples: deque[Tensor] = deque(maxlen=size)

    def add(self, sample: Tensor) -> None:
        """Add counts of all ranks together; the oldest sample leaves."""
        self._samples.append(sample)

    def total(self) -> Tensor:
        """The sum, of the samples' own shape."""
        return torch.stack(list(self._samples)).sum(0)
