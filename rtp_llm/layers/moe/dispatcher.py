"""How tokens reach the experts of this process, and how their sums come back."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

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
