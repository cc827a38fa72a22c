# SPDX-License-Identifier: Apache-2.0
"""Engines of several tensor-parallel ranks give what one of one rank gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtp_llm.testing.engine.tensor_ranks import SMALL, check_alike, play, ranks
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.worker.heads.logit_shards import LogitShards

pytestmark = pytest.mark.usefixtures("forked_processes")


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    save_model(path, request.param)
    return path


@pytest.mark.parametrize("overlap", [False, True], ids=["", "overlap"])
def test_the_same_outcomes(folder: Path, overlap: bool) -> None:
    expected = play(TinyEngine(folder, enable_overlap=overlap, **SMALL))
    with ranks(folder, enable_overlap=overlap) as engine:
        check_alike(play(engine), expected)
        assert engine.engine.stats().preemptions > 0


def test_log_probabilities_gather_no_logits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(engine: TinyEngine) -> TinyEngine:
        for number, temperature in enumerate((0.0, 0.8, 1.3)):
            options = {"temperature": temperature, "logprobs": 5 * number, "max_tokens": 9}
            engine.add(random_prompt(20, seed=number), ignore_eos=True, **options)
        engine.run()
        return engine

    one = run(TinyEngine(folder, **SMALL))
    monkeypatch.setattr(LogitShards, "gather", None)  # of rank 0, which would call it
    with ranks(folder) as engine:
        check_alike(run(engine).outcomes, one.outcomes)
