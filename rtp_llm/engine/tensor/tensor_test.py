"""Engines of several tensor-parallel ranks give what one of one rank gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rtp_llm.engine.tensor.tensor_for_tests import SMALL, check_alike, ranks
from rtp_llm.testing.tiny_engine import Outcome, TinyEngine
from rtp_llm.testing.transformers_models import random_prompt, save_model

WISHES: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 11},
    {"temperature": 0.9, "top_p": 0.8, "n": 3},
    {"temperature": 1.0, "logprobs": 3},
    {"repetition_penalty": 1.4, "frequency_penalty": 0.2},
    {"logit_bias": {5: 4.0}, "logprobs": 0, "n": 2},
    {"min_tokens": 9, "stop_token_ids": tuple(range(0, 199, 5)), "temperature": 1.0},
    {"prompt_logprobs": 2, "max_tokens": 5},
]


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    save_model(path, request.param)
    return path


def play(engine: TinyEngine) -> dict[tuple[int, int], Outcome]:
    """Requests that arrive, are aborted and have prefixes in common; the outcomes."""
    for number in range(3 * len(WISHES)):
        wish = {"ignore_eos": True, "max_tokens": 60, **WISHES[number % len(WISHES)]}
        engine.add(random_prompt(3 + 11 * number % 90, seed=number % 5), **wish)
        engine.step()
    engine.add(random_prompt(50), pooling="mean", max_tokens=2)
    aborted = engine.add(random_prompt(50), max_tokens=90)
    engine.engine.abort([(aborted, 0)])
    engine.run()
    engine.assert_all_free()
    return engine.outcomes


@pytest.mark.parametrize("overlap", [False, True], ids=["", "overlap"])
def test_the_same_outcomes(folder: Path, overlap: bool) -> None:
    expected = play(TinyEngine(folder, enable_overlap=overlap, **SMALL))
    with ranks(folder, enable_overlap=overlap) as engine:
        check_alike(play(engine), expected)
        assert engine.engine.stats().preemptions > 0
