# SPDX-License-Identifier: Apache-2.0
"""Engines that draft by n-grams give what plain engines give, in fewer steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rtp_llm.engine.messages import EngineStartError
from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.repetitive_requests import run_repetitive
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.hybrid_model import hybrid_model
from rtp_llm.testing.models.transformers_models import save_model

NGRAM: dict[str, Any] = {"speculative": "ngram", "num_speculative_tokens": 5}
pytest_plugins = "rtp_llm.testing.engine.repetitive_requests"


def run(folder: Path, **settings: Any) -> TinyEngine:
    return run_repetitive(folder, 18, distinct=18, **settings)


@pytest.fixture(scope="module")
def plain(folder: Path) -> TinyEngine:
    """What ran without drafts."""
    return run(folder)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("tokens", [1, 3, 7])
def test_answers_stay_the_same(folder: Path, plain: TinyEngine, overlap: bool, tokens: int) -> None:
    engine = run(folder, speculative="ngram", num_speculative_tokens=tokens, enable_overlap=overlap)
    assert engine.outcomes == plain.outcomes
    stats = engine.engine.stats()
    assert stats.spec_decode_num_accepted_tokens > 50
    per_place = stats.spec_decode_accepted_per_pos
    assert sum(per_place) == stats.spec_decode_num_accepted_tokens
    assert len(per_place) <= tokens and sorted(per_place, reverse=True) == list(per_place)
    outcomes = engine.outcomes.values()
    assert stats.spec_decode_num_draft_tokens == sum(each.drafts for each in outcomes)
    assert sum(per_place) == sum(each.accepted_drafts for each in outcomes)


@pytest.mark.parametrize(
    "family",
    [
        "deepseek_v3",
        "gemma2",
        "gemma3",
        "gemma4",
        "glm_moe_dsa",
        "gpt_oss",
        "granite4",
        "qwen3_moe",
        "qwen3_next",
        "qwen3_5_moe",
    ],
)
def test_latents_experts_windows_and_states(tmp_path: Path, family: str) -> None:
    save_model(tmp_path, family)
    with each_token_alone():
        plain, engine = run(tmp_path), run(tmp_path, **NGRAM)
    # Log-probabilities round with the window in which a state took a token in.
    for key, outcome in engine.outcomes.items():
        assert outcome.tokens == plain.outcomes[key].tokens
    assert engine.engine.stats().spec_decode_num_accepted_tokens > 50


def test_text_that_repeats_itself_takes_fewer_steps(folder: Path) -> None:
    prompt, options = (
        [7, 8, 9] * 4,
        {"max_tokens": 30, "ignore_eos": True, "logit_bias": {5: 100.0}},
    )
    engine = TinyEngine(folder, **NGRAM)
    assert engine.tokens(prompt, **options) == [5] * 30
    # The prompt's step gives one token, two more show the repetition, then six a step.
    assert engine.engine.stats().steps == 1 + 2 + 5
    assert engine.outcomes[1, 0].accepted_drafts == 22


def test_a_request_may_do_without(folder: Path) -> None:
    engine = TinyEngine(folder, **NGRAM)
    options = {"max_tokens": 30, "ignore_eos": True, "repetition_penalty": 0.01}
    for speculate in (False, True):
        request = engine.add([7, 8, 9] * 5, speculate=speculate, **options)
        engine.run()
        assert (engine.outcomes[request, 0].drafts > 0) == speculate
    assert engine.outcomes[1, 0] == engine.outcomes[2, 0]


def test_aborted_sequences_are_forgotten(folder: Path) -> None:
    engine = TinyEngine(folder, **NGRAM)
    native = engine.engine._proposer.native  # type: ignore[attr-defined]
    for _ in range(3):
        engine.add([7, 8, 9] * 5, n=2, max_tokens=30, ignore_eos=True)
    engine.step()
    engine.engine.abort([(2, 0), (2, 1)])
    assert native.num_sequences == 4
    engine.run()
    assert native.num_sequences == 0


def test_what_cannot_verify_drafts_is_refused(tmp_path: Path) -> None:
    with hybrid_model(tmp_path), pytest.raises(EngineStartError, match="recurrent states go back"):
        TinyEngine(tmp_path, load_format="dummy", **NGRAM)
