"""How often each logical expert was chosen, counted on the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor


class ExpertLoads:
    """Counts int64 [layers, experts] that the steps add to; nothing is read back meanwhile."""

    def __init__(self, num_layers: int, num_experts: int, device: torch.device) -> None:
        self._counts = torch.zeros(num_layers, num_experts, dtype=torch.int64, device=device)

    def counter(self, layer: int) -> Callable[[Tensor, Tensor], None]:
        """Adds the choices of a batch of that layer: ids [T, k] of logical experts, weights."""
        counts = self._counts[layer]

        def count(ids: Tensor, weights: Tensor) -> None:
            flat = ids.reshape(-1)
            counts.index_add_(0, flat, torch.ones_like(flat, dtype=torch.int64))

        return count

    def take(self) -> Tensor:
        """The counts so far, on the host; they begin anew. Waits for the device."""
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
