# SPDX-License-Identifier: Apache-2.0
"""What the processes of a model's ranks say to each other, beside steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rtp_llm.worker.plan.layout import PlanLayout


@dataclass(frozen=True)
class Start:
    """``factory`` is the "module:function" that makes the worker of ``arguments``; ``place``: among
    the processes that the same ``parent`` started, with which this one ends."""

    place: int
    factory: str
    arguments: tuple[Any, ...]
    parent: int
    log_level: int


@dataclass(frozen=True)
class Steps:
    """Steps come from now on; behind it two descriptors: of the plan's memory and of a StepMemory
    for ``num_workers``. ``spin``: microseconds. ``in_flight``: see Worker; more than 1 are taken
    ahead of their work."""

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
class Beside:
    """A ``message`` for what a rank does beside steps, or from it to rank 0; see BesideSteps."""

    message: Any


@dataclass(frozen=True)
class LogLine:
    """What a rank has to tell the user."""

    level: int
    logger: str
    text: str


@dataclass(frozen=True)
class Failure:
    """The rank can execute nothing any more; ``by_another``: because it misses another one."""

    reason: str
    by_another: bool = False
