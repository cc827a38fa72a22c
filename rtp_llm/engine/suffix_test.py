# SPDX-License-Identifier: Apache-2.0
"""Engines that draft from suffix trees give what plain engines give, in fewer steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rtp_llm.config.settings import Settings
from rtp_llm.device import resolve_device
from rtp_llm.engine.start.explain_speculation import explain_speculation
from rtp_llm.testing.engine import repetitive_requests as repetitive
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import random_prompt
from rtp_llm.worker.speculative.methods import make_proposer

SUFFIX: dict[str, Any] = {"speculative": "suffix", "num_speculative_tokens": 5}
OPTIONS = [*repetitive.OPTIONS, {"speculate": False}, {"max_tokens": 3}]
SMALL: dict[str, Any] = {
    "kv_cache_mem_mb": 1,
    "seq_size_per_block": 4,
    "max_seq_len": 160,
    "max_running_requests": 24,
    "max_batch_tokens_size": 64,
}


pytest_plugins = "rtp_llm.testing.engine.repetitive_requests"


def run(folder: Path, **settings: Any) -> TinyEngine:
    """Each request comes twice."""
    return repetitive.run_repetitive(folder, 24, distinct=12, option_sets=OPTIONS, **settings)


@pytest.fixture(scope="module")
def plain(folder: Path) -> TinyEngine:
    """What ran without drafts."""
    return run(folder)


def compare(engine: TinyEngine, plain: TinyEngine) -> None:
    for outcome in (*engine.outcomes.values(), *plain.outcomes.values()):
        outcome.cached = 0  # depends on when a step ran
    assert engine.outcomes == plain.outcomes


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("tokens", [1, 3, 7])
def test_answers_stay_the_same(folder: Path, plain: TinyEngine, overlap: bool, tokens: int) -> None:
    options = {**SUFFIX, "num_speculative_tokens": tokens}
    engine = run(folder, enable_overlap=overlap, **options)
    compare(engine, plain)
    stats = engine.engine.stats()
    assert stats.spec_decode_num_accepted_tokens > 50
    assert stats.spec_decode_num_accepted_tokens == sum(stats.spec_decode_accepted_per_pos)
    outcomes = engine.outcomes.values()
    assert stats.spec_decode_num_draft_tokens == sum(each.drafts for each in outcomes)
    assert stats.spec_decode_num_accepted_tokens == sum(each.accepted_drafts for each in outcomes)


@pytest.mark.parametrize("tokens", [1, 7])
def test_preemption_changes_no_token(folder: Path, tokens: int) -> None:
    options = {**SUFFIX, "num_speculative_tokens": tokens}
    plain, engine = run(folder, **SMALL), run(folder, enable_overlap=True, **SMALL, **options)
    compare(engine, plain)
    assert engine.engine.stats().preemptions > 0
    assert engine.engine.stats().spec_decode_num_accepted_tokens > 50


def test_what_was_said_before_is_said_in_fewer_steps(folder: Path) -> None:
    options = {"max_tokens": 40, "ignore_eos": True, "temperature": 1.0, "seed": 1}
    steps, said = [], []
    for kept in (0, 10):
        engine = TinyEngine(folder, suffix_decoding_max_cached_requests=kept, **SUFFIX)
        said.append([engine.tokens(random_prompt(9), **options) for _ in range(2)])
        steps.append(engine.engine.stats().steps)
    assert said[0] == said[1] and said[0][0] == said[0][1]
    assert steps[1] < steps[0] - 20


def test_answers_of_other_keys_are_no_drafts(folder: Path) -> None:
    """A key that asks what another one asked drafts as if it were alone."""
    options = {"max_tokens": 40, "ignore_eos": True, "temperature": 1.0, "seed": 1}
    engine = TinyEngine(folder, **SUFFIX)

    def drafts_of(key: str) -> tuple[int, int]:
        request = engine.add(random_prompt(9), key=key, **options)
        engine.run()
        outcome = engine.outcomes[request, 0]
        return outcome.drafts, outcome.accepted_drafts

    alone = drafts_of("key:a\n")
    assert drafts_of("key:b\n") == drafts_of("") == drafts_of("key:a\nsalt") == alone
    for key in ("key:a\n", "key:b\n", ""):
        assert drafts_of(key)[1] > alone[1] + 10, "its own answer"


def test_a_sequence_ends_at_each_place_among_accepted_tokens(folder: Path) -> None:
    prompt = random_prompt(12)
    said = TinyEngine(folder).tokens(prompt, max_tokens=16, ignore_eos=True)
    engine = TinyEngine(folder, **SUFFIX)
    engine.tokens(prompt, max_tokens=16, ignore_eos=True)
    for place, token in enumerate(said):
        for options, expected, finish in (
            ({"stop_token_ids": (token,)}, said[: said.index(token) + 1], "stop"),
            ({"max_tokens": place + 1}, said[: place + 1], "length"),
        ):
            request = engine.add(prompt, **{"max_tokens": 16, "ignore_eos": True, **options})
            engine.run()
            outcome = engine.outcomes[request, 0]
            assert (outcome.tokens, outcome.finish) == (expected, finish)
    assert engine.engine.stats().spec_decode_num_accepted_tokens > 50
    engine.assert_all_free()


def test_aborted_sequences_are_forgotten(folder: Path) -> None:
    engine = TinyEngine(folder, **SUFFIX)
    native = engine.engine._proposer.native  # type: ignore[attr-defined]
    for _ in range(3):
        engine.add([7, 8, 9] * 5, n=2, max_tokens=30, ignore_eos=True)
    engine.step()
    engine.engine.abort([(2, 0), (2, 1)])
    assert native.num_sequences == 4
    engine.run()
    engine.assert_all_free()
    assert native.num_sequences == 0
    assert native.num_cached == 6


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_explain_says_who_waits(method: str) -> None:
    device = resolve_device("cpu")
    settings = Settings(model="m", speculative=method, num_speculative_tokens=4)
    text = explain_speculation(settings, device)
    assert text.startswith(f"speculation: {method}, up to 4 drafts, fewer or none where ")
    assert ("do not overlap" in text) == make_proposer(settings, device).needs_tokens
    table = "[[1, 4, 3], [5, 9, 0]]"
    settings = Settings(model="m", speculative=method, num_speculative_tokens_per_batch_size=table)
    expected = "drafts by batch size: 3 up to 4 sequences, 0 up to 9 sequences, 0 above; "
    assert expected in explain_speculation(settings, device)
    assert explain_speculation(Settings(model="m"), device) == "speculation: none"
