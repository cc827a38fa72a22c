# SPDX-License-Identifier: Apache-2.0
"""Prompts of text and images, added to engines, and what transformers answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rtp_llm.testing.engine.tiny_engine import Outcome, TinyEngine
from rtp_llm.testing.models.spanned_prompts import Image, Oracle, SpannedPrompt

COUNT = 6
SMALL: dict[str, Any] = {
    "seq_size_per_block": 4,
    "max_seq_len": 96,
    "max_running_requests": 8,
    "max_batch_tokens_size": 64,
    "kv_cache_mem_mb": 2,
}
CAT, DOG, MAP = Image(3, 4, seed=1), Image(3, 4, seed=2), Image(2, 9, seed=3)
PROMPTS = [
    SpannedPrompt.random(5, CAT, 6),
    SpannedPrompt.random(5, DOG, 6),
    SpannedPrompt.random(3, MAP, 4, CAT, 2, seed=5),
    SpannedPrompt.random(Image(1, 1, seed=4), 9),
    SpannedPrompt.random(21),
]


class Answers:
    """What transformers answers."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._tokens: dict[int, list[int]] = {}

    def check(self, number: int, outcome: Outcome) -> None:
        """An outcome is that of prompt ``number``."""
        prompt, count = PROMPTS[number], len(outcome.tokens)
        if len(self._tokens.get(number, ())) < count:
            self._tokens[number] = self._oracle.answer(prompt, count)
        expected = self._tokens[number][:count]
        assert count >= COUNT
        assert outcome.tokens == expected
        scores = torch.log_softmax(self._oracle.logits(prompt, expected[:-1]), -1)
        for row, entry in zip(scores, outcome.logprobs, strict=True):
            top = [(token, float(row[token])) for token, _ in entry.top]
            assert [value for _, value in entry.top] == pytest.approx(
                [value for _, value in top], abs=2e-4
            )


def add(engine: TinyEngine, number: int, **params: Any) -> int:
    prompt = PROMPTS[number]
    wanted = {"max_tokens": COUNT, "ignore_eos": True, "logprobs": 3, **params}
    return engine.add(prompt.ids, inputs=prompt.inputs, **wanted)


def play(engine: TinyEngine, answers: Answers, times: int = 1) -> None:
    """Every prompt, all at once; nothing is left afterwards."""
    numbers = list(range(len(PROMPTS))) * times
    requests = [add(engine, number) for number in numbers]
    engine.run()
    for number, request in zip(numbers, requests, strict=True):
        answers.check(number, engine.outcomes[request, 0])
    engine.assert_all_free()
    store = engine.built.worker.runner.inputs._embeddings
    assert store is not None and not store._spans
    assert not engine.engine._requests._embeddings._taken
