# SPDX-License-Identifier: Apache-2.0
"""Where experts are: physical experts on ranks, each a copy of a logical expert of the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Placement:
    """`experts[p]`: the logical expert that physical expert p is a copy of.

    Rank r holds the physical experts r * `slots` to (r + 1) * `slots` - 1. Every logical expert
    has at least one copy, and no rank holds two copies of the same expert.
    """

    experts: tuple[int, ...]
    num_logical: int
    num_ranks: int

    def __post_init__(self) -> None:
        if len(self.experts) % self.num_ranks:
            raise ValueError(
                f"{len(self.experts)} physical experts (with redundant_expert) cannot be divided "
                f"evenly among {self.num_ranks} ranks"
            )
        if set(self.experts) != set(range(self.num_logical)):
            raise ValueError(f"not every one of {self.num_logical} experts has a copy")
        for rank in range(self.num_ranks):
            twice = [e for e, count in Counter(self.on_rank(rank)).items() if count > 1]
            if twice:
                raise ValueError(f"rank {rank} holds expert {twice[0]} twice")

    @classmethod
    def initial(cls, num_logical: int, redundant: int, num_ranks: int) -> Placement:
        """Experts in order, then copies of the first `redundant` ones."""
        experts = tuple(p % num_logical for p in range(num_logical + redundant))
        return cls(experts, num_logical, num_ranks)

    @property
    def slots(self) -> int:
        """Physical experts of a rank."""
        return len(self.experts) // self.num_ranks

    def on_rank(self, rank: int) -> tuple[int, ...]:
        """The logical experts in the slots of a rank."""
        return self.experts[rank * self.slots : (rank + 1) * self.slots]

    def copies(self) -> list[list[int]]:
        """The physical experts of each logical expert, in order."""
        found: list[list[int]] = [[] for _ in range(self.num_logical)]
        for physical, logical in enumerate(self.experts):
            found[logical].append(physical)
        return found

    def rank_loads(self, loads: Sequence[float]) -> list[float]:
        """The load of each rank, if the copies of a logical expert share its load evenly."""
        counts = Counter(self.experts)
        return [
            sum(loads[expert] / counts[expert] for expert in self.on_rank(rank))
            for rank in range(self.num_ranks)
        ]

    def imbalance(self, loads: Sequence[float]) -> float:
        """The most loaded rank's load over the mean: 1 is even, `num_ranks` the worst."""
        by_rank = self.rank_loads(loads)
        mean = sum(by_rank) / len(by_rank)
        return max(by_rank) / mean if mean else 1.0


class ExpertMap:
    """Logical experts to physical ones, on the device: tensors that stay in place.

    The copies of an expert take turns by the token's place in the batch, so the same batch goes the
    same way every time. Needs no answer of the device, and may be captured in a graph.
    """

    def __init__(self, placement: Placement, rank: int, device: torch.device) -> None:
        """`rank`: where the tokens are; a single token of each rank finds another copy."""
        max_copies = min(placement.num_ranks, len(placement.experts) - placement.num_logical + 1)
        self._copies = torch.zeros(
            placement.num_logical, max_copies, dtype=torch.int32, device=device
        )
        self._counts = torch.ones(placement.num_logical, dtype=torch.int32, device=device)
        self._rank = rank
        self.load(placement)

    def load(self, placement: Placement) -> None:
        """Take another placement of as many physical experts."""
        listed = placement.copies()
        width = self._copies.shape[1]
        rows = [[copies[i % len(copies)] for i in range(width)] for copies in listed]
        self._copies.copy_(torch.tensor(rows, dtype=torch.int32))
        self._counts.copy_(torch.tensor([len(copies) for copies in listed], dtype=torch.int32))

    def apply(self, ids: Tensor) -> None:
        """Replace logical `ids` (int32 or int64 [T, k]) by physical ones, in place."""
        turn = torch.arange(len(ids), dtype=torch.int32, device=ids.device)[:, None] + self._rank
        logical = ids.long()
        ids.copy_(self._copies[logical, (turn % self._counts[logical]).long()])
