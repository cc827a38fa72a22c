# SPDX-License-Identifier: Apache-2.0
"""A prompt that gives NaN at the prefill worker, and at both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rtp_llm.testing.disagg.workers import SIZES, Pair, Worker, prompt
from rtp_llm.testing.engine.tiny_engine import TinyEngine

pytest_plugins = "rtp_llm.testing.disagg.fixtures"


@pytest.fixture
def pair(folder: Path) -> Iterator[Pair]:
    made = Pair(folder, **SIZES)
    yield made
    made.close()


def poison(worker: Worker, token: int) -> torch.Tensor:
    """The token's embedding is NaN from now on."""
    row: torch.Tensor = worker.base.worker.runner.model.model.embed_tokens.weight[token]
    return row.fill_(torch.nan)


def test_nan_at_the_prefill_worker_is_computed_here(pair: Pair, fused: TinyEngine) -> None:
    tokens = prompt(50, seed=7)
    expected = fused.tokens(tokens, ignore_eos=True)
    poison(pair.prefill, tokens[20])
    assert pair.tokens(tokens, ignore_eos=True) == expected
    assert pair.prefill.failures() == {"model_produced_nan": 1}
    pair.settle()


def test_nan_at_both_ends_the_request(pair: Pair, fused: TinyEngine) -> None:
    broken, fine = prompt(50, seed=8), prompt(40, seed=9)
    while broken[20] in fine:
        broken[20] += 1
    expected = fused.tokens(fine, ignore_eos=True, logit_bias={broken[20]: -100.0})
    for worker in (pair.prefill, pair.decode):
        poison(worker, broken[20])
    bad = pair.decode.add(broken, ignore_eos=True)
    assert pair.tokens(fine, ignore_eos=True, logit_bias={broken[20]: -100.0}) == expected
    pair.until(lambda: pair.finished(bad))
    assert (pair.decode.outcomes[bad].finish, pair.decode.outcomes[bad].tokens) == ("error", [])
    pair.settle()
