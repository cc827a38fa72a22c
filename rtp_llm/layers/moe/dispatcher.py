# SPDX-License-Identifier: Apache-2.0
"""Dispatchers, which bring tokens to the experts of a process and return the results."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from rtp_llm.distributed.tensor_parallel import TensorParallel
from rtp_llm.layers.moe.config import MoeConfig
from rtp_llm.layers.weights.shard import Shard

# Modifies a selection in place: (ids int32 [T, k], weights float32 [T, k]).
SelectionStep = Callable[[Tensor, Tensor], None]


@dataclass(frozen=True)
class Dispatched:
    """Tokens for the experts of this process.

    x [T', hidden]; ids int32 [T', k'] are slots of its weights, -1 for experts that are not local;
    weights float32 [T', k']. `meta` is what the dispatcher needs to return the results.
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
    """`local_experts`: the expert in each slot of this process's weights; it may occur twice.

    `priority` ranks strategies ahead of the executor's priority. More than `max_rows` rows are
    computed in chunks; None: no limit.
    """

    name: ClassVar[str]
    priority: ClassVar[int]
    max_rows: ClassVar[int | None]
    local_experts: tuple[int, ...]

    @abstractmethod
    def prepare(self, x: Tensor, ids: Tensor, weights: Tensor) -> Dispatched:
        """Turn x [T, hidden] and its selection into the input of this process's experts."""

    @abstractmethod
    def finalize(self, dispatched: Dispatched, out: Tensor) -> Tensor:
        """Combine out [T', hidden], sums over the local experts, into full sums [T, hidden]."""


class LocalDispatcher:
    """The dispatcher of a process that holds all experts."""

    name: ClassVar[str] = "local"
    priority: ClassVar[int] = 0
    max_rows: ClassVar[int | None] = None

    def __init__(self, num_experts: int) -> None:
        self.local_experts = tuple(range(num_experts))

    def prepare(self, x: Tensor, ids: Tensor, weights: Tensor) -> Dispatched:
        return Dispatched(x, ids, weights)

    def finalize(self, dispatched: Dispatched, out: Tensor) -> Tensor:
        return out


class DividedDispatcher:
    """Experts sharded evenly over tensor-parallel ranks, each of which has all tokens.

    No tokens are exchanged: the local experts' results are this rank's partial sums.
    """

    name: ClassVar[str] = "divided"
    priority: ClassVar[int] = 0
    max_rows: ClassVar[int | None] = None

    def __init__(self, num_experts: int, ranks: TensorParallel, device: torch.device) -> None:
        """Create the dispatcher; DivisionError if experts cannot be divided evenly."""
        ((first, last),) = Shard.even(num_experts, ranks, "the number of experts").ranges
        self.local_experts = tuple(range(first, last))
        slots = [each - first if first <= each < last else -1 for each in range(num_experts)]
        self._slots = torch.tensor(slots, dtype=torch.int32, device=device)

    def prepare(self, x: Tensor, ids: Tensor, weights: Tensor) -> Dispatched:
        return Dispatched(x, self._slots.index_select(0, ids.view(-1)).view_as(ids), weights)

    def finalize(self, dispatched: Dispatched, out: Tensor) -> Tensor:
        return out


class ExpertHooks(Protocol):
    """Hooks by which a deployment changes the blocks of a model; see LayerOptions.experts."""

    @abstractmethod
    def dispatcher(self, index: int, config: MoeConfig) -> Dispatcher:
        """The dispatcher of the block of layer `index`."""

    @abstractmethod
    def steps(self, index: int, config: MoeConfig) -> tuple[SelectionStep, ...]:
        """The steps that modify the selection of layer `index`, in order; the last is final."""

    @property
    @abstractmethod
    def of_drafts(self) -> ExpertHooks | None:
        """The hooks for draft layers, all of whose experts are local."""
