# SPDX-License-Identifier: Apache-2.0
"""How tokens reach the experts of this process, and how their sums come back."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from rtp_llm.distributed.tensor_parallel import TensorParallel
from rtp_llm.layers.cuts import Cut
from rtp_llm.layers.moe.config import MoeConfig

# What may change a selection in place, in order: (ids int32 [T, k], weights float32 [T, k]).
SelectionStep = Callable[[Tensor, Tensor], None]


@dataclass(frozen=True)
class Dispatched:
    """Tokens for the experts of this process.

    x [T', hidden]; ids int32 [T', k'] are slots of its weights, or -1 for experts elsewhere;
    weights float32 [T', k']. `meta` is what the dispatcher needs for the way back.
    """

    x: Tensor
    ids: Tensor
    weights: Tensor
    meta: object = None

    def part(self, start: int, stop: int) -> Dispatched:
        """Rows `start` to `stop` - 1 alone."""
        rows = slice(start, stop)
        return Dispatched(self.x[rows], self.ids[rows], self.weights[rows])


class Dispatcher(Protocol):
    """`local_experts`: the expert of each slot of this process's weights; one may come twice.

    `priority` orders strategies before the executor's does. `most_rows`: more rows are computed in
    parts; None: all at once.
    """

    name: ClassVar[str]
    priority: ClassVar[int]
    most_rows: ClassVar[int | None]
    local_experts: tuple[int, ...]

    @abstractmethod
    def prepare(self, x: Tensor, ids: Tensor, weights: Tensor) -> Dispatched:
        """x [T, hidden] with its selection -> what the experts here compute."""

    @abstractmethod
    def finalize(self, dispatched: Dispatched, out: Tensor) -> Tensor:
        """out [T', hidden], the weighted sums of the experts here -> sums of all, [T, hidden]."""


class LocalDispatcher:
    """All experts are here."""

    name: ClassVar[str] = "local"
    priority: ClassVar[int] = 0
    most_rows: ClassVar[int | None] = None

    def __init__(self, num_experts: int) -> None:
        self.local_experts = tuple(range(num_experts))

    def prepare(self, x: Tensor, ids: Tensor, weights: Tensor) -> Dispatched:
        return Dispatched(x, ids, weights)

    def finalize(self, dispatched: Dispatched, out: Tensor) -> Tensor:
        return out


class DividedDispatcher:
    """Each tensor-parallel rank has all tokens and some experts, the same number of them.

    Nothing travels: what the experts here give is this rank's part of the sums.
    """

    name: ClassVar[str] = "divided"
    priority: ClassVar[int] = 0
    most_rows: ClassVar[int | None] = None

    def __init__(self, num_experts: int, ranks: TensorParallel, device: torch.device) -> None:
        """DivisionError where ranks would have unequal numbers of experts."""
        ((first, last),) = Cut.even(num_experts, ranks, "the number of experts").runs
        self.local_experts = tuple(range(first, last))
        slots = [each - first if first <= each < last else -1 for each in range(num_experts)]
        self._slots = torch.tensor(slots, dtype=torch.int32, device=device)

    def prepare(self, x: Tensor, ids: Tensor, weights: Tensor) -> Dispatched:
        return Dispatched(x, self._slots.index_select(0, ids.view(-1)).view_as(ids), weights)

    def finalize(self, dispatched: Dispatched, out: Tensor) -> Tensor:
        return out


class ExpertHooks(Protocol):
    """What a deployment changes in the blocks of a model; LayerOptions.experts carries it."""

    @abstractmethod
    def dispatcher(self, index: int, config: MoeConfig) -> Dispatcher:
        """The dispatcher of the block of layer `index`."""

    @abstractmethod
    def steps(self, index: int, config: MoeConfig) -> tuple[SelectionStep, ...]:
        """What changes the selection of layer `index`, in order; the last leaves what it routes."""

    @property
    @abstractmethod
    def of_drafts(self) -> ExpertHooks | None:
        """Those of a layer that drafts, all of whose experts are here."""
