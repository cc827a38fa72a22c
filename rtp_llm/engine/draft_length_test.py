# SPDX-License-Identifier: Apache-2.0
"""Answers stay the same however many drafts a step takes: none, all, another number in each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.eagle3_models import save_eagle3_head
from rtp_llm.testing.models.mtp_models import save_mtp_model
from rtp_llm.testing.models.transformers_models import random_prompt, save_model
from rtp_llm.worker.speculative.draft_length import DraftLength

WORDS = 20  # few, so that random drafts are right now and then
OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7, "seed": 4, "logprobs": 1},
    {"temperature": 1.0, "top_k": 3, "n": 3},
    {"repetition_penalty": 1.2, "presence_penalty": -1.0},
    {"min_tokens": 12, "stop_token_ids": tuple(range(0, WORDS, 3))},
    {"logit_bias": {5: 90.0, 6: 89.5}, "temperature": 1.0},
]


class AnyLength(DraftLength):
    """Another one for each step."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._random = np.random.default_rng(7)
        self.taken: set[int] = set()

    def choose(self) -> int:
        self.taken.add(length := int(self._random.integers(0, self._most + 1)))
        return length


@pytest.fixture(scope="module", params=["llama", "qwen3_next"])
def folder(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp(request.param)
    if request.param == "llama":
        target = save_model(path, request.param, vocab_size=WORDS)
        save_eagle3_head(path / "head", target, draft_vocab_size=WORDS - 2)
        save_model(path / "draft", "qwen3", vocab_size=WORDS, num_hidden_layers=1)
    else:
        save_mtp_model(path, request.param, vocab_size=WORDS)
    with each_token_alone():  # so that verifying in one step rounds as decoding does
        yield path


def methods(folder: Path) -> list[dict[str, Any]]:
    """Settings of what can draft for the model."""
    heads = [{"speculative": "mtp"}]
    if "llama" in folder.name:
        further = ("eagle3", folder / "head"), ("draft-model", folder / "draft")
        heads = [{"speculative": name, "speculative_model": str(path)} for name, path in further]
    return [{"speculative": "ngram"}, {"speculative": "suffix"}, *heads]


def run(folder: Path, length: DraftLength | None = None, **settings: Any) -> TinyEngine:
    engine = TinyEngine(folder, seed=3, **settings)
    if length is not None:
        engine.engine._draft_length = length
    for number in range(12):
        prompt = random_prompt(4 + number, seed=number, vocabulary=WORDS) * 3
        engine.add(prompt, max_tokens=30, ignore_eos=True, **OPTIONS[number % len(OPTIONS)])
    engine.run()
    engine.assert_all_free()
    return engine


@pytest.mark.parametrize("overlap", [False, True])
def test_a_length_that_changes_at_run_time(folder: Path, overlap: bool) -> None:
    plain = run(folder)
    for method in methods(folder):
        length = AnyLength(7)
        options = {"num_speculative_tokens": 7, "enable_overlap": overlap}
        engine = run(folder, length, **method, **options)
        for key, outcome in engine.outcomes.items():
            assert outcome.tokens == plain.outcomes[key].tokens
            assert outcome.finish == plain.outcomes[key].finish
        assert length.taken == set(range(8))
        assert engine.engine.stats().spec_decode_num_accepted_tokens > 5


def test_the_table_of_settings_rules(folder: Path) -> None:
    table = "[[1, 4, 2], [5, 20, 0]]"
    options = {"speculative": "ngram", "num_speculative_tokens_per_batch_size": table}
    engine = TinyEngine(folder, **options)
    accepted = []
    for count in (8, 2):
        for seed in range(count):
            engine.add([7, 8, 9, seed] * 4, max_tokens=20, ignore_eos=True, logit_bias={5: 90.0})
        engine.run()
        stats = engine.engine.stats()
        accepted.append(stats.spec_decode_num_accepted_tokens)
        assert stats.spec_decode_num_speculative_tokens == (2 if count == 2 else 0)
    assert accepted[0] == 0 < accepted[1]
    assert len(stats.spec_decode_accepted_per_pos) == 2


def test_measured_lengths_change_no_token(folder: Path) -> None:
    plain = run(folder)
    for method in methods(folder):
        engine = run(folder, num_speculative_tokens=7, speculative_adaptive=True, **method)
        for key, outcome in engine.outcomes.items():
            assert outcome.tokens == plain.outcomes[key].tokens
