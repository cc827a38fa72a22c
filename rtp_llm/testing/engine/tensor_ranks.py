# SPDX-License-Identifier: Apache-2.0
"""Engines of several ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.engine.messages import TokenLogprob
from rtp_llm.request.params import POOLING_TYPES, PoolingParams, ScoringParams
from rtp_llm.testing.engine.tiny_engine import Outcome, TinyEngine
from rtp_llm.testing.models.transformers_models import random_prompt

SMALL: dict[str, Any] = {
    "seed": 3,
    "seq_size_per_block": 4,
    "max_batch_tokens_size": 40,
    "kv_cache_mem_mb": 1,
    "max_running_requests": 24,
    "max_seq_len": 160,
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 11},
    {"temperature": 0.9, "top_p": 0.8, "n": 3},
    {"temperature": 1.0, "logprobs": 3},
    {"repetition_penalty": 1.4, "frequency_penalty": 0.2},
    {"logit_bias": {5: 4.0}, "logprobs": 0, "n": 2},
    {"min_tokens": 9, "stop_token_ids": tuple(range(0, 199, 5)), "temperature": 1.0},
    {"prompt_logprobs": 2, "max_tokens": 5},
]


@contextmanager
def ranks(folder: Path, size: int = 2, **settings: Any) -> Iterator[TinyEngine]:
    """An engine whose model, or each stage of it, is on ``size`` ranks of the CPU."""
    engine = TinyEngine(folder, tensor_parallel_size=size, **{**SMALL, **settings})
    try:
        yield engine
    finally:
        engine.close()


def play(engine: TinyEngine) -> dict[tuple[int, int], Outcome]:
    """Requests that arrive, are aborted and have prefixes in common; the outcomes."""
    for number in range(3 * len(OPTIONS)):
        options = {"ignore_eos": True, "max_tokens": 60, **OPTIONS[number % len(OPTIONS)]}
        engine.add(random_prompt(3 + 11 * number % 90, seed=number % 5), **options)
        engine.step()
    for kind in POOLING_TYPES:
        engine.add_request(random_prompt(50), PoolingParams(pooling_type=kind, normalize=False))
    engine.add_request(random_prompt(40), ScoringParams(prompt_logprobs=2))
    aborted = engine.add(random_prompt(50), max_tokens=90)
    engine.engine.abort([(aborted, 0)])
    engine.run()
    engine.assert_all_free()
    return engine.outcomes


def check_alike(
    found: dict[tuple[int, int], Outcome],
    expected: dict[tuple[int, int], Outcome],
    within: float = 1e-4,
) -> None:
    """The same tokens and ends; numbers within ``within``, for sums have another order."""
    assert found.keys() == expected.keys()
    for key, outcome in found.items():
        one = expected[key]
        said = [(each.tokens, each.finish, each.stop_token, each.error) for each in (outcome, one)]
        assert said[0] == said[1], key
        assert outcome.pooled == pytest.approx(one.pooled, abs=within)
        _check_logprobs(outcome.logprobs, one.logprobs, within)
        scored = outcome.prompt_logprobs, one.prompt_logprobs
        assert scored[0].keys() == scored[1].keys()
        _check_logprobs(list(scored[0].values()), list(scored[1].values()), within)


def _check_logprobs(found: list[TokenLogprob], expected: list[TokenLogprob], within: float) -> None:
    for entry, one in zip(found, expected, strict=True):
        assert entry.token_id == one.token_id
        assert entry.logprob == pytest.approx(one.logprob, abs=within), (entry, one)
        assert [value for _, value in entry.top] == pytest.approx(
            [value for _, value in one.top], abs=within
        )
