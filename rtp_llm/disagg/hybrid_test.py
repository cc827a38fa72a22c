# SPDX-License-Identifier: Apache-2.0
"""States travel with keys and values: prefill and decode workers of a hybrid model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.disagg.wire.differences import explain
from rtp_llm.disagg.wire.fingerprint import fingerprint
from rtp_llm.models.causal_lm import CausalLM
from rtp_llm.testing.disagg.workers import Pair, prompt
from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.models.hybrid_model import hybrid_model, plain_tokens

SIZES: dict[str, Any] = {
    "load_format": "dummy",
    "seq_size_per_block": 4,
    "max_running_requests": 8,
    "max_batch_tokens_size": 16,
    "kv_cache_mem_mb": 4,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("hybrid")
    with hybrid_model(made), each_token_alone():
        yield made


@pytest.fixture(scope="module")
def pair(folder: Path) -> Iterator[Pair]:
    made = Pair(folder, **SIZES)
    yield made
    made.close()


@pytest.fixture(scope="module")
def model(pair: Pair) -> CausalLM:
    return pair.decode.base.worker.runner.model


@pytest.mark.parametrize("length", [1, 3, 4, 16, 17, 25, 48, 61])
def test_greedy_text_is_that_of_an_uncached_run(pair: Pair, model: CausalLM, length: int) -> None:
    tokens = prompt(length, seed=length)
    assert pair.tokens(tokens, max_tokens=7) == plain_tokens(model, tokens, 7)
    pair.settle()


def test_prefixes_that_both_have_are_not_sent_again(pair: Pair, model: CausalLM) -> None:
    shared = prompt(37, seed=1)
    for tail in ([], [9, 8], [9, 8, 7, 6, 5]):
        tokens = [*shared, *tail]
        assert pair.tokens(tokens, max_tokens=6) == plain_tokens(model, tokens, 6)
    pair.settle()


def test_many_at_once(pair: Pair, model: CausalLM) -> None:
    prompts = [prompt(length, seed=50 + length) for length in (5, 16, 22, 31, 40)]
    ids = [pair.decode.add(tokens, max_tokens=5) for tokens in prompts]
    pair.until(lambda: pair.finished(*ids))
    for tokens, request in zip(prompts, ids, strict=True):
        assert pair.decode.outcomes[request].tokens == plain_tokens(model, tokens, 5)
    assert pair.decode.transfers()["asked"] >= 5
    pair.settle()


def test_a_mismatch_names_the_group(pair: Pair) -> None:
    def said(worker: Any) -> str:
        runner = worker.base.worker.runner
        same = {"weights": "float32", "quantization": "none", "content": "dummy"}
        return fingerprint(runner.model.config, runner.model.cache_groups(), 4, **same)

    ours = said(pair.decode)
    assert ours == said(pair.prefill)
    assert "group1=sliding_window-9:2x2x16:2" in ours
    assert "group2=recurrent:2x8x8.float32+2x8.float32:1,3" in ours
    (line,) = explain((1, ours.replace("2x8x8", "2x8x16")), (1, ours))
    assert line.startswith("group2 is recurrent:2x8x16.float32+2x8.float32:1,3 there and")
