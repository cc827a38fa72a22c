# SPDX-License-Identifier: Apache-2.0
"""Ranks are lost fifty times in every way, of two and three, at every moment."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from rtp_llm.testing.engine.rank_failures import MOMENTS, check_rank_failure
from rtp_llm.testing.models.transformers_models import save_model

ROUNDS, NOTICED_SECONDS = 50, 2.0


@pytest.mark.parametrize("how", ["killed", "stopped", "out of memory"])
def test_fifty_losses(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = {"num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 16}
    save_model(tmp_path, "llama", intermediate_size=96, **heads)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    draw, shared = random.Random(7), set(os.listdir("/dev/shm"))
    descriptors = len(os.listdir("/proc/self/fd"))
    for number in range(ROUNDS):
        with monkeypatch.context() as patch:
            moment, size = draw.choice(MOMENTS), draw.choice((2, 3))
            overlap = number % 2 == 0
            given = (tmp_path, how, moment, patch)
            check_rank_failure(*given, seconds=NOTICED_SECONDS, size=size, overlap=overlap)
    assert set(os.listdir("/dev/shm")) <= shared
    # Those of the process groups are closed by their threads, some time after.
    assert len(os.listdir("/proc/self/fd")) < descriptors + ROUNDS


@pytest.mark.parametrize("how", ["killed", "stopped", "out of memory"])
def test_the_stage_in_the_middle_is_lost(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path, "llama")
    given = (tmp_path, how, MOMENTS[-1], monkeypatch)
    check_rank_failure(*given, seconds=10 * NOTICED_SECONDS, size=1, stages=3, lost=1)
