# SPDX-License-Identifier: Apache-2.0
"""Messages between the processes of a model's ranks, other than steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from rtp_llm.worker.plan.layout import PlanLayout

if TYPE_CHECKING:
    from rtp_llm.worker.forked_sequences import ForkedSequences
    from rtp_llm.worker.new_sequences import NewSequences


@dataclass(frozen=True)
class Start:
    """``factory`` is the "module:function" that makes the worker from ``arguments``; ``place`` is
    the index among the processes started by the same ``parent``, with which this one ends."""

    place: int
    factory: str
    arguments: tuple[Any, ...]
    parent: int
    log_level: int


@dataclass(frozen=True)
class Steps:
    """Steps start to arrive. Two file descriptors follow this message: the plan's memory, and a
    StepMemory for ``num_workers``. ``spin``: microseconds. ``in_flight``: see Worker; if it is
    more than 1, steps are received before the work of earlier ones is done."""

    layout: PlanLayout
    num_workers: int
    spin: int
    in_flight: int = 1


@dataclass(frozen=True)
class Ended:
    """Sequences that no later plan names."""

    ids: tuple[int, ...]
    aborted: bool


@dataclass(frozen=True)
class Received:
    """See Worker.receive."""

    sequence: int
    slot: int
    token: int
    draft_state: bytes


@dataclass(frozen=True)
class ConnectorMessage:
    """A ``message`` to a rank's WorkerConnector, or from it to rank 0."""

    message: Any


ToRank: TypeAlias = "NewSequences | ForkedSequences | Ended | Received | ConnectorMessage"
"""A message to all ranks that they take before the next step."""
ToNode: TypeAlias = "NewSequences | ForkedSequences | Ended"
"""One that ranks of other machines get too."""


@dataclass(frozen=True)
class LogLine:
    """A line for the log, which rank 0 writes."""

    level: int
    logger: str
    text: str


@dataclass(frozen=True)
class Failure:
    """The rank cannot execute anything any more; ``by_another``: because another rank failed."""

    reason: str
    by_another: bool = False
