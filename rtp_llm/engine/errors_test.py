# SPDX-License-Identifier: Apache-2.0
"""Sequences whose logits are no distribution end alone, and leave nothing for others to find."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rtp_llm.testing.engine.tiny_engine import Outcome, TinyEngine
from rtp_llm.testing.models.transformers_models import (
    clear_prompt,
    expected_tokens,
    random_prompt,
    save_model,
)

POISON = 198  # the token whose embedding is NaN
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"enable_overlap": False}),
    ("llama", {"enable_overlap": True}),
    ("mistral", {"enable_overlap": True}),
    ("deepseek_v3", {"enable_overlap": True}),
]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: f"{kind[0]}-{kind[1]}")
def model(request, tmp_path_factory) -> Any:
    kind, settings = request.param
    folder = tmp_path_factory.mktemp(kind)
    window = {"sliding_window": 24} if kind == "mistral" else {}
    return folder, save_model(folder, kind, **window), settings


def poisoned(folder: Any, **settings: Any) -> tuple[TinyEngine, torch.Tensor]:
    """An engine, and the row of its embedding that is NaN from now on."""
    engine = TinyEngine(folder, seq_size_per_block=4, **settings)
    row: torch.Tensor = engine.built.worker.runner.model.model.embed_tokens.weight[POISON]
    row.fill_(torch.nan)
    return engine, row


def safe_prompt(reference: Any, length: int, count: int, seed: int = 0) -> tuple[list[int], Any]:
    """A prompt whose greedy continuation, the second value, never samples the poison."""
    while True:
        prompt = random_prompt(length, seed, vocabulary=POISON)
        expected = expected_tokens(reference, prompt, count)
        if POISON not in expected:
            return prompt, expected
        seed += 1000


def is_error(outcome: Outcome, tokens: int = 0) -> bool:
    return (outcome.finish, outcome.error, len(outcome.tokens)) == (
        "error",
        "model_produced_nan",
        tokens,
    )


def test_a_sequence_of_nan_ends_alone(model):
    folder, reference, settings = model
    engine, _ = poisoned(folder, **settings)
    good = [safe_prompt(reference, 9 + i, 12, seed=i) for i in range(3)]
    ids = [engine.add(prompt, max_tokens=12, ignore_eos=True) for prompt, _ in good]
    bad = engine.add([5, POISON, 7, 8, 9, 10], n=3, max_tokens=12, logprobs=2)
    engine.run()
    assert [engine.outcomes[each, 0].tokens for each in ids] == [tokens for _, tokens in good]
    for index in range(3):
        assert is_error(engine.outcomes[bad, index])
        assert not engine.outcomes[bad, index].logprobs
    engine.assert_all_free()
    assert engine.engine.stats().degenerate_rows == 3


def test_nan_after_some_tokens_keeps_those(model):
    folder, reference, settings = model
    engine, _ = poisoned(folder, **settings)
    prompt, expected = safe_prompt(reference, 10, 4)
    sampled: list[int] = []

    def poison_fourth(logits: torch.Tensor, rows: Any) -> None:
        sampled.extend(rows.steps.tolist())
        logits[rows.steps >= 3] = torch.nan

    bad = engine.add(prompt, processors=[poison_fourth], max_tokens=20, ignore_eos=True)
    engine.run()
    assert is_error(engine.outcomes[bad, 0], tokens=3)
    assert engine.outcomes[bad, 0].tokens == expected[:3]
    assert sampled == [0, 1, 2, 3]
    assert engine.tokens(prompt, max_tokens=4, ignore_eos=True) == expected
    engine.assert_all_free()


def test_what_others_compute_in_those_blocks_is_right(model):
    """Few blocks, so that all of them have held NaN before the last requests get them."""
    folder, reference, settings = model
    engine, _ = poisoned(folder, max_seq_len=80, kv_cache_mem_mb=1, **settings)
    blocks = engine.ready.num_blocks
    for number in range(blocks * 4 // 60 + 1):
        prompt = random_prompt(60, number, vocabulary=POISON)
        prompt[number % 60] = POISON
        assert engine.tokens(prompt, max_tokens=4) == []
    for seed in range(3):
        prompt, expected = safe_prompt(reference, 30, 20, seed)
        assert engine.tokens(prompt, max_tokens=20, ignore_eos=True) == expected


def test_the_prefix_cache_forgets_blocks_of_nan(model):
    folder, reference, settings = model
    engine, row = poisoned(folder, max_batch_tokens_size=16, **settings)
    healthy = reference.get_input_embeddings().weight[POISON].detach()
    prompt, _ = clear_prompt(reference, 50, 6)
    prompt[20] = POISON
    expected = expected_tokens(reference, prompt, 6)
    for _ in range(2):
        assert engine.tokens(prompt, max_tokens=6, ignore_eos=True) == []
    row.copy_(healthy)  # as if the fault had been the device's, for a while
    for cached in (0, 48):
        request_id = engine.add(prompt, max_tokens=6, ignore_eos=True)
        engine.run()
        assert engine.outcomes[request_id, 0].tokens == expected
        assert engine.outcomes[request_id, 0].cached == cached


def test_a_prefix_that_served_others_stays(tmp_path):
    reference = save_model(tmp_path, "llama")
    engine, _ = poisoned(tmp_path, enable_overlap=True)
    shared, expected = safe_prompt(reference, 41, 8)
    assert engine.tokens(shared, max_tokens=8, ignore_eos=True) == expected
    assert engine.tokens([*shared, POISON], max_tokens=8) == []
    again = engine.add(shared, max_tokens=8, ignore_eos=True)
    engine.run()
    assert engine.outcomes[again, 0].tokens == expected
    assert engine.outcomes[again, 0].cached == 40


def test_a_prompt_without_scores_has_no_answer(model):
    """NaN in the middle of a prompt may leave the logits of its end alone; scores may not."""
    folder, reference, settings = model
    engine = TinyEngine(folder, max_batch_tokens_size=16, **settings)
    prompt, expected = safe_prompt(reference, 40, 5)
    logits = engine.built.worker.runner.logits

    def broken(hidden: torch.Tensor, rows: Any) -> torch.Tensor:
        result = logits(hidden, rows)
        if len(rows) > 1:
            result[1] = torch.inf
        return result

    engine.built.worker.runner.logits = broken
    bad = engine.add(prompt, prompt_logprobs=2, n=2, max_tokens=5, ignore_eos=True)
    fine = engine.add(prompt, max_tokens=5, ignore_eos=True)
    engine.run()
    for index in range(2):
        assert is_error(engine.outcomes[bad, index])
    assert not engine.outcomes[bad, 0].prompt_logprobs
    assert engine.outcomes[fine, 0].tokens == expected
    assert engine.engine.stats().degenerate_rows == 2
    assert not engine.built.worker.prompt_heads["score"]._requests
    engine.assert_all_free()


def test_settings_that_forbid_every_token_are_distinguished(model):
    folder, reference, settings = model
    engine = TinyEngine(folder, **settings)
    prompt, expected = safe_prompt(reference, 20, 3)
    stop_at_once = {"stop_token_ids": tuple(range(199)), "min_tokens": 2, "max_tokens": 4}
    banned = engine.add(prompt, **stop_at_once)
    engine.run()
    outcome = engine.outcomes[banned, 0]
    assert (outcome.finish, outcome.error) == ("error", "no_allowed_tokens")
    again = engine.add(prompt, max_tokens=3, ignore_eos=True)
    engine.run()
    assert engine.outcomes[again, 0].tokens == expected
    assert engine.outcomes[again, 0].cached == 16  # the blocks are none the worse
    engine.assert_all_free()
