# SPDX-License-Identifier: Apache-2.0
"""A rank that is lost in the middle of steps ends the engine, and says so in time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rtp_llm.engine.ranks import tensor_ranks
from rtp_llm.testing.engine.failing_workers import NO_WORKER
from rtp_llm.testing.engine.rank_failures import MOMENTS, check_rank_failure
from rtp_llm.testing.engine.tensor_ranks import ranks
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import save_model
from rtp_llm.worker.ranks.rank_failure import WorkerLostError

pytestmark = pytest.mark.usefixtures("forked_processes")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    save_model(path, "llama")
    return path


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("how", ["killed", "stopped", "out of memory"])
def test_a_rank_is_lost(
    how: str, moment: Callable[[TinyEngine], None], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Before any time-out; within two seconds in the soak test, which has the machine for itself.
    check_rank_failure(folder, how, moment, monkeypatch, seconds=20.0)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_stage_is_lost(
    how: str, moment: Callable[[TinyEngine], None], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_rank_failure(folder, how, moment, monkeypatch, seconds=20.0, size=1, stages=2)


def test_a_rank_of_a_stage_is_killed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoding = MOMENTS[-1]
    check_rank_failure(folder, "killed", decoding, monkeypatch, seconds=20.0, stages=2, lost=1)


def test_a_rank_that_cannot_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_ranks, "RANK_FACTORY", NO_WORKER)
    with pytest.raises(WorkerLostError, match="rank 1: this rank cannot be"), ranks(folder):
        pass
