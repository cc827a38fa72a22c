# SPDX-License-Identifier: Apache-2.0
"""Drafts that are sampled: tokens have the distribution that they have without drafts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm.config.settings import Settings
from rtp_llm.device import resolve_device
from rtp_llm.engine.messages import EngineStartError
from rtp_llm.engine.start.explain_speculation import explain_speculation
from rtp_llm.engine.start.memory_estimate import explain_cache
from rtp_llm.engine.start.memory_plan import step_limits
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.testing.engine.draft_steps_by_hand import DRAFT_CASES, DraftStepsByHand
from rtp_llm.testing.engine.drafting_models import WORDS, Model, save_drafting_model
from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.replays import capture_on_cpu
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.mtp_models import save_mtp_model
from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.worker.speculative.methods import drafter_bytes

SAMPLED = {"draft_sample_method": "probabilistic"}
MODELS = ("mtp qwen3_5", "eagle3 llama", "draft-model llama llama")
SEQUENCES = 1000
PROMPT = random_prompt(6, 2, WORDS)


@pytest.fixture(scope="module", params=MODELS)
def model(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with each_token_alone():
        yield save_drafting_model(tmp_path_factory.mktemp("model"), request.param)


def engine_of(model: Model, *, seed: int = 3, **settings: Any) -> TinyEngine:
    sizes = {"max_running_requests": 64, "max_queued_requests": SEQUENCES, "kv_cache_mem_mb": 32}
    return TinyEngine(model.folder, seed=seed, **{**sizes, **settings})


def sampled_tokens(engine: TinyEngine, first_seed: int, **options: Any) -> list[tuple[int, ...]]:
    """The second to fourth token of many sequences: those that drafts are verified for."""
    for number in range(SEQUENCES):
        engine.add(PROMPT, seed=first_seed + number, max_tokens=4, ignore_eos=True, **options)
    engine.run()
    engine.assert_all_free()
    return [tuple(outcome.tokens[1:]) for outcome in engine.outcomes.values()]


def assert_same_distribution(mine: list[Any], other: list[Any]) -> None:
    """Chi-square of two samples of one size, rare values together. The seeds are fixed: five
    standard deviations are never exceeded by chance later."""
    assert len(mine) == len(other)
    counts, others = Counter(mine), Counter(other)
    both = {value: (counts[value], others[value]) for value in counts | others}
    often = [pair for pair in both.values() if sum(pair) >= 10]
    rare = [pair for pair in both.values() if sum(pair) < 10]
    often.append((sum(pair[0] for pair in rare), sum(pair[1] for pair in rare)))
    distance = sum((a - b) ** 2 / (a + b) for a, b in often if a + b)
    freedom = max(1, len(often) - 1)
    assert distance < freedom + 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize(
    ("overlap", "options"),
    [
        (True, {"temperature": 1.0}),
        (True, {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "logit_bias": {5: 1.0, 6: -2.0}}),
        (False, {"temperature": 1.3, "repetition_penalty": 1.3, "presence_penalty": 0.5}),
    ],
    ids=["temperature", "filters", "penalties"],
)
def test_tokens_have_the_distribution_without_drafts(
    model: Model, overlap: bool, options: dict[str, Any]
) -> None:
    plain = sampled_tokens(engine_of(model), 10_000, **options)
    engine = engine_of(model, **model.settings, **SAMPLED, enable_overlap=overlap)
    tokens = sampled_tokens(engine, 50_000, **options)
    for place in range(3):
        assert_same_distribution([each[place] for each in tokens], [each[place] for each in plain])
    for place in range(2):
        pairs = ([each[place : place + 2] for each in some] for some in (tokens, plain))
        assert_same_distribution(*pairs)
    stats = engine.engine.stats()
    accepted, drafts = stats.spec_decode_num_accepted_tokens, stats.spec_decode_num_draft_tokens
    assert 30 < accepted < 0.95 * drafts


def test_more_drafts_are_accepted_than_of_greedy_ones(model: Model) -> None:
    accepted = []
    for settings in ({}, SAMPLED):
        engine = engine_of(model, **model.settings, **settings)
        sampled_tokens(engine, 10_000, temperature=1.5)
        accepted.append(engine.engine.stats().spec_decode_num_accepted_tokens)
    assert accepted[1] > 1.2 * accepted[0]


def test_a_model_that_drafts_for_itself_is_always_right(tmp_path: Path) -> None:
    """p = q: whatever is sampled is accepted, at any temperature."""
    save_model(tmp_path, "llama", vocab_size=WORDS)
    with each_token_alone():
        settings = {"speculative": "draft-model", "speculative_model": str(tmp_path)}
        engine = TinyEngine(tmp_path, **settings, **SAMPLED, enable_overlap=True)
        for number, temperature in enumerate((0.5, 1.0, 2.0)):
            prompt = random_prompt(9 + number, number, WORDS)
            engine.add(prompt, temperature=temperature, n=3, max_tokens=24, ignore_eos=True)
        engine.run()
    drafts = sum(outcome.drafts for outcome in engine.outcomes.values())
    right = sum(outcome.accepted_drafts for outcome in engine.outcomes.values())
    # Nothing but the rounding of two batches tells the two distributions apart.
    assert drafts > 100 and right >= drafts - 1


def mixed(engine: TinyEngine) -> None:
    for number in range(16):
        options: dict[str, Any] = {"logprobs": 2, "max_tokens": 20, "ignore_eos": True}
        if number % 2:
            options |= {"temperature": 1.0, "seed": number, "top_p": 0.95}
        if number % 5 == 1:
            options["speculate"] = False
        engine.add(random_prompt(4 + 3 * number, number, WORDS), **options)
        engine.step()
    engine.run()
    engine.assert_all_free()


@pytest.mark.parametrize("overlap", [False, True])
def test_greedy_rows_and_log_probabilities_among_sampled_ones(model: Model, overlap: bool) -> None:
    plain = engine_of(model)
    mixed(plain)
    engine = engine_of(model, **model.settings, **SAMPLED, enable_overlap=overlap)
    mixed(engine)
    right = 0
    for key, outcome in engine.outcomes.items():
        assert outcome.error is None and len(outcome.tokens) == len(outcome.logprobs) == 20
        if key[0] % 2 or key[0] % 5 == 2:  # greedy, or without drafts
            assert outcome.tokens == plain.outcomes[key].tokens
        else:
            right += outcome.accepted_drafts
        prompt = random_prompt(4 + 3 * (key[0] - 1), key[0] - 1, WORDS)
        scored = plain.add([*prompt, *outcome.tokens], prompt_logprobs=1, max_tokens=1)
        plain.run()
        expected = plain.outcomes[scored, 0].prompt_logprobs
        for place, (token, found) in enumerate(zip(outcome.tokens, outcome.logprobs, strict=True)):
            assert found.token_id == token
            assert found.logprob == pytest.approx(expected[len(prompt) + place].logprob, abs=1e-3)
    assert right > 10


def test_a_seeded_request_does_not_depend_on_its_batch(model: Model) -> None:
    options: dict[str, Any] = {"temperature": 1.0, "seed": 7, "max_tokens": 30, "ignore_eos": True}
    alone = engine_of(model, **model.settings, **SAMPLED).tokens(PROMPT, **options)
    engine = engine_of(model, **model.settings, **SAMPLED, seed=9)
    for number in range(5):
        engine.add(random_prompt(9 + number, number, WORDS), temperature=1.0, max_tokens=40)
        engine.step()
    assert engine.tokens(PROMPT, **options) == alone


@pytest.mark.parametrize("name", ["qwen3_5_moe", "eagle3"])
def test_replays_draft_what_eager_steps_draft(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"speculative": "mtp"}
    if name == "eagle3":
        head = tmp_path / "head"
        from rtp_llm.testing.models.eagle3_models import save_eagle3_head

        save_eagle3_head(head, save_model(tmp_path / "m", "llama"), draft_vocab_size=90)
        settings = {"speculative": "eagle3", "speculative_model": str(head)}
    else:
        save_mtp_model(tmp_path / "m", name)
    engine = TinyEngine(
        tmp_path / "m",
        seq_size_per_block=8,
        kv_cache_mem_mb=2,
        num_speculative_tokens=3,
        max_running_requests=16,
        **settings,
        **SAMPLED,
    )
    steps = DraftStepsByHand(engine)
    sampling = steps.drafter.sampling
    assert sampling is not None
    sampling._temperature[:-1] = 1.0
    sampling._seeds.copy_(torch.arange(len(sampling._seeds)))
    capture_on_cpu(monkeypatch)
    for case in DRAFT_CASES:
        steps.check_drafts(case, steps.graphs(96, case.size), near=1e-4)


@pytest.mark.parametrize("method", ["ngram", "suffix", "none"])
def test_what_drafts_no_distribution_is_refused(tmp_path: Path, method: str) -> None:
    save_model(tmp_path, "llama", vocab_size=WORDS)
    with pytest.raises(EngineStartError, match=f"probabilistic .*--speculative {method}"):
        TinyEngine(tmp_path, speculative=method, **SAMPLED)


def test_explain_and_the_plan_count_the_logits(tmp_path: Path) -> None:
    made = save_drafting_model(tmp_path, "eagle3 llama")
    device = resolve_device("cpu")
    settings = Settings(
        model=str(made.folder),
        max_running_requests=512,
        dtype="float32",
        **made.settings,
        **SAMPLED,
    )
    config = read_model_config(settings.model, **settings.draft_head)
    limits = step_limits(settings, config, device)
    assert config.draft_vocab_size == WORDS - 2
    expected = 4 * (WORDS - 2) * 512 * 4
    assert drafter_bytes(settings, device, limits, config.draft_vocab_size) == expected
    assert "logits that drafts are sampled from: 0 MiB" in explain_cache(settings, device)
    assert "drafts sampled at each request's temperature" in explain_speculation(settings, device)
