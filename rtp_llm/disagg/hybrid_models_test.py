# SPDX-License-Identifier: Apache-2.0
"""States of hybrids travel with keys and values: transformers' tokens on the far side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.disagg.wire.fingerprint import fingerprint
from rtp_llm.testing.disagg.workers import Pair
from rtp_llm.testing.models.transformers_models import clear_prompt, expected_tokens, save_model

SIZES: dict[str, Any] = {
    "seq_size_per_block": 4,
    "max_running_requests": 8,
    "max_batch_tokens_size": 16,
    "kv_cache_mem_mb": 8,
}
STATES = {
    "Qwen3NextForCausalLM": "11x160.float32+4x24x16.float32+16x2x16.float32+16x4x24.float32"
    "+16x4.float32+4x3.int32:0-1,3",
    "GraniteMoeHybridForCausalLM": "11x224.float32+8x16x24.float32+16x2x24.float32"
    "+16x8x16.float32+16x8.float32+8x2.int32:0,2-3",
}


@dataclass
class Model:
    """A model in a pair of workers and in transformers."""

    pair: Pair
    reference: Any

    def check(self, *prompts: list[int], count: int = 24) -> None:
        """The pair's tokens for `prompts`, which it gets together."""
        ids = [
            self.pair.decode.add(prompt, max_tokens=count, ignore_eos=True) for prompt in prompts
        ]
        self.pair.until(lambda: self.pair.finished(*ids))
        for request, prompt in zip(ids, prompts, strict=True):
            expected = expected_tokens(self.reference, prompt, count)
            assert self.pair.decode.outcomes[request].tokens == expected
        self.pair.settle()


@pytest.fixture(scope="module", params=["qwen3_next", "granite4"])
def model(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    reference = save_model(folder, request.param)
    pair = Pair(folder, **SIZES)
    yield Model(pair, reference)
    pair.close()


def test_prompts_of_one_chunk_and_of_several(model: Model) -> None:
    for length in (1, 4, 16, 17, 45):
        model.check(clear_prompt(model.reference, length, 24)[0])
    assert model.pair.decode.transfers()["delivered"] == 5


def test_several_at_once(model: Model) -> None:
    model.check(*(clear_prompt(model.reference, length, 24)[0] for length in (3, 16, 22, 31)))


def test_prefixes_that_both_have_are_not_sent_again(model: Model) -> None:
    prompt = clear_prompt(model.reference, 37, 24)[0]
    for _ in range(2):
        model.check(prompt)


def test_workers_compare_the_sizes_of_states(model: Model) -> None:
    runner = model.pair.decode.base.worker.runner
    same = {"weights": "float32", "quantization": "none", "content": "x"}
    said = fingerprint(runner.model.config, runner.model.cache_groups(), 4, **same)
    # Of each layer the convolution, the state, its ring and counts.
    assert f"recurrent:{STATES[runner.model.config.architecture]}" in said
