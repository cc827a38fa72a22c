"""A rank that is lost in the middle of steps ends the engine, and says so in time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rtp_llm.engine.tensor.loss_for_tests import MOMENTS, check_loss
from rtp_llm.testing.tiny_engine import TinyEngine
from rtp_llm.testing.transformers_models import save_model


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
    check_loss(folder, how, moment, monkeypatch, seconds=20.0)
