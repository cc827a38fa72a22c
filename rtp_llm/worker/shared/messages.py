"""What an engine and its worker processes say to each other, beside steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rtp_llm.worker.shared.plan import PlanLayout


@dataclass(frozen=True)
class Start:
    """``factory`` is the "module:function" that makes the worker of ``arguments``."""

    number: int
    num_workers: int
    factory: str
    arguments: tuple[Any, ...]
    layout: PlanLayout
    plan_descriptor: int
    step_descriptor: int
    max_rows: int
    spin: int


@dataclass(frozen=True)
class Ready:
    """The worker can execute steps."""

    overlaps: bool


@dataclass(frozen=True)
class Ended:
    """Sequences that no later plan names."""

    ids: tuple[int, ...]
    aborted: bool


@dataclass(frozen=True)
class Failure:
    """The worker can execute nothing any more."""

    reason: str
