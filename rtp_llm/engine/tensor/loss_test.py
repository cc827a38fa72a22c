"""A rank that is lost in the middle of steps ends the engine, and says so in time."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from rtp_llm.engine.messages import EngineDeadError
from rtp_llm.engine.tensor.tensor_for_tests import ranks
from rtp_llm.testing.tiny_engine import TinyEngine
from rtp_llm.testing.transformers_models import random_prompt, save_model
from rtp_llm.worker.shared.rank_processes import WorkerLostError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    save_model(path, "llama")
    return path


def rank_one(engine: TinyEngine) -> int:
    group = engine.built.step_group
    pid: int = group.processes.pids[0]  # type: ignore[union-attr]
    return pid


def steps_until_it_ends(engine: TinyEngine) -> float:
    """Seconds."""
    engine.add(random_prompt(9), max_tokens=140, ignore_eos=True)
    began = time.monotonic()
    while True:
        engine.step()
        if not engine.engine.has_work:
            engine.add(random_prompt(9), max_tokens=140, ignore_eos=True)
        assert time.monotonic() - began < 30


def test_a_killed_rank(folder: Path) -> None:
    with ranks(folder) as engine:
        engine.add(random_prompt(9), max_tokens=140, ignore_eos=True)
        engine.step()
        killed = time.monotonic()
        os.kill(rank_one(engine), signal.SIGKILL)
        with pytest.raises(WorkerLostError, match="rank 1 was ended by signal SIGKILL"):
            steps_until_it_ends(engine)
        assert time.monotonic() - killed < 2
        with pytest.raises(EngineDeadError):
            engine.step()


def test_a_stopped_rank(folder: Path) -> None:
    with ranks(folder, step_timeout=1.5) as engine:
        engine.add(random_prompt(9), max_tokens=140, ignore_eos=True)
        engine.step()
        stopped = rank_one(engine)
        os.kill(stopped, signal.SIGSTOP)
        with pytest.raises(RuntimeError, match=r"lost contact to another rank|has not begun"):
            steps_until_it_ends(engine)
    assert not Path(f"/proc/{stopped}").exists()
