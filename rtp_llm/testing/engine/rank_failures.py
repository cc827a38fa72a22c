# SPDX-License-Identifier: Apache-2.0
"""Ranks that are lost in the middle of steps, in every way and at every moment."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.engine.messages import EngineDeadError
from rtp_llm.engine.ranks import tensor_ranks
from rtp_llm.engine.ranks.tensor_ranks import TensorRanks
from rtp_llm.engine.ranks.topology import Topology
from rtp_llm.testing.engine.failing_workers import OUT_OF_MEMORY, STEPS
from rtp_llm.testing.engine.tensor_ranks import ranks
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import random_prompt
from rtp_llm.worker.ranks.stopped import STOPPED

_TIMEOUT = 60.0


def idle(engine: TinyEngine) -> None:
    """No step is under way."""
    ask(engine, 9)
    engine.run()


def in_a_prompt(engine: TinyEngine) -> None:
    """Of several chunks."""
    ask(engine, 100)
    engine.step()


def decoding(engine: TinyEngine) -> None:
    for number in range(5):
        ask(engine, 9 + number)
    for _ in range(8):
        engine.step()


MOMENTS = (idle, in_a_prompt, decoding)
# For a rank that runs out of memory: how many steps it takes.
_LAST_STEPS: dict[Callable[[TinyEngine], None], int] = {idle: 45, in_a_prompt: 1, decoding: 9}
_SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}
_REASONS = {
    "out of memory": r"rank [12].*: OutOfMemoryError: a rank's memory is full",
}


def ask(engine: TinyEngine, length: int) -> None:
    engine.add(random_prompt(length, length), max_tokens=40, ignore_eos=True)


def check_rank_failure(
    folder: Path,
    how: str,
    moment: Callable[[TinyEngine], None],
    patch: pytest.MonkeyPatch,
    *,
    seconds: float,
    size: int = 2,
    stages: int = 1,
    lost: int | None = None,
    overlap: bool = False,
) -> None:
    """Lose a rank, the last one or number ``lost``, of ``stages`` of ``size`` ranks: the engine
    ends in time, says why, and leaves no process.

    ``how``: killed, stopped or out of memory; ``seconds`` until it is noticed.
    """
    rank = stages * size - 1 if lost is None else lost
    name = Topology(pipeline=stages, tensor=size).rank_name(rank)
    ended = STOPPED if how == "stopped" else "was ended by signal SIGKILL"
    reason = _REASONS.get(how) or re.escape(f"{name} {ended}")
    settings: dict[str, Any] = {"step_timeout": _TIMEOUT, "pipeline_parallel_size": stages}
    if stages == 1:
        settings["enable_overlap"] = overlap
    if how == "out of memory":
        patch.setattr(tensor_ranks, "RANK_FACTORY", OUT_OF_MEMORY)
        patch.setenv(STEPS, str(_LAST_STEPS[moment]))
    with ranks(folder, size, **settings) as engine:
        pids = _lose(engine, how, moment, rank, reason, seconds)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def _lose(
    engine: TinyEngine,
    how: str,
    moment: Callable[[TinyEngine], None],
    rank: int,
    reason: str,
    seconds: float,
) -> list[int]:
    """Processes of the other ranks, when the engine has ended for that reason."""
    group = engine.built.step_group
    assert isinstance(group, TensorRanks) and group.processes is not None
    pids = group.processes.pids
    with pytest.raises(RuntimeError, match=reason):
        moment(engine)
        if how in _SIGNALS:
            os.kill(pids[rank - 1], _SIGNALS[how])
        began = time.monotonic()
        _step_on(engine)
    if how in _SIGNALS:
        assert time.monotonic() - began < seconds
    with pytest.raises(EngineDeadError):
        engine.step()
    return pids


def _step_on(engine: TinyEngine) -> None:
    began = time.monotonic()
    while time.monotonic() - began < _TIMEOUT:
        if not engine.engine.has_work:
            ask(engine, 9)
        engine.step()
    raise AssertionError("nobody missed the rank")
