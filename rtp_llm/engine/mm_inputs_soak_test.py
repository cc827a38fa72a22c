# SPDX-License-Identifier: Apache-2.0
"""Embeddings and positions of three axes on more ranks than mm_inputs_test.py starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtp_llm.testing.engine.spanned_answers import SMALL, Answers, play
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.spanned_model import FACTORY
from rtp_llm.testing.models.spanned_prompts import save_spanned_model


@pytest.mark.parametrize(
    "layout",
    [
        {"pipeline_parallel_size": 3},
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
        {"tensor_parallel_size": 2, "enable_overlap": True},
    ],
    ids=["stages", "tensor-and-stages", "overlap"],
)
def test_ranks(tmp_path: Path, layout: dict[str, int]) -> None:
    answers = Answers(save_spanned_model(tmp_path))
    for tokens in (7, 64):
        settings = {**SMALL, "max_batch_tokens_size": tokens, **layout}
        engine = TinyEngine(tmp_path, **settings, factory=FACTORY)
        try:
            play(engine, answers, times=2)
        finally:
            engine.close()
