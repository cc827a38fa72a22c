"""Engines of several tensor-parallel ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.engine.messages import TokenLogprob
from rtp_llm.testing.tiny_engine import Outcome, TinyEngine

SMALL: dict[str, Any] = {
    "seed": 3,
    "seq_size_per_block": 4,
    "max_batch_tokens_size": 40,
    "kv_cache_mem_mb": 1,
    "max_running_requests": 24,
    "max_seq_len": 160,
}


@contextmanager
def ranks(folder: Path, size: int = 2, **settings: Any) -> Iterator[TinyEngine]:
    """An engine whose model is on ``size`` ranks of the CPU."""
    engine = TinyEngine(folder, tensor_parallel_size=size, **{**SMALL, **settings})
    try:
        yield engine
    finally:
        engine.close()


def check_alike(
    found: dict[tuple[int, int], Outcome], expected: dict[tuple[int, int], Outcome]
) -> None:
    """The same tokens and ends; numbers as near as sums in another order are."""
    assert found.keys() == expected.keys()
    for key, outcome in found.items():
        one = expected[key]
        said = [(each.tokens, each.finish, each.stop_token, each.error) for each in (outcome, one)]
        assert said[0] == said[1], key
        assert outcome.pooled == [pytest.approx(each, abs=1e-4) for each in one.pooled]
        _check_logprobs(outcome.logprobs, one.logprobs)
        scored = outcome.prompt_logprobs, one.prompt_logprobs
        assert scored[0].keys() == scored[1].keys()
        _check_logprobs(list(scored[0].values()), list(scored[1].values()))


def _check_logprobs(found: list[TokenLogprob], expected: list[TokenLogprob]) -> None:
    for entry, one in zip(found, expected, strict=True):
        assert entry.token_id == one.token_id
        assert entry.logprob == pytest.approx(one.logprob, abs=1e-4)
        assert [value for _, value in entry.top] == pytest.approx(
            [value for _, value in one.top], abs=1e-4
        )
