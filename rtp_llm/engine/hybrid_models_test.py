# SPDX-License-Identifier: Apache-2.0
"""Engines over models with gated delta nets give transformers' tokens, however steps are cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm.testing.engine.replays import Replays
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import (
    NearTieError,
    clear_prompt,
    expected_logits,
    expected_tokens,
    random_prompt,
    save_model,
)
from rtp_llm.worker.inputs.graph_inputs import GraphInputs
from rtp_llm.worker.inputs.graph_sizes import GraphSize

BLOCK = 4
SIZES: dict[str, Any] = {
    "seq_size_per_block": BLOCK,
    "max_running_requests": 8,
    "max_batch_tokens_size": 16,
    "kv_cache_mem_mb": 16,
}
KINDS = ("granite4", "nemotron_h", "qwen3_next", "qwen3_5", "qwen3_5_moe_images")


@dataclass
class Model:
    """A folder, transformers' model of it, and an engine of ours."""

    folder: Path
    reference: Any
    engine: TinyEngine
    prompts: dict[tuple[int, int], tuple[list[int], list[int]]] = field(default_factory=dict)

    def prompt(self, length: int, count: int = 12) -> tuple[list[int], list[int]]:
        """A random prompt and its `count` greedy tokens, none of which is a close call."""
        key = length, count
        if key not in self.prompts:
            self.prompts[key] = clear_prompt(self.reference, length, count)
        return self.prompts[key]

    def after(self, prefix: list[int], seeds: range, count: int = 6) -> list[list[int]]:
        """Prompts that begin with `prefix` and differ in their last tokens; no close calls."""
        tails = (random_prompt(1 + seed % 3, seed) for seed in seeds)
        return [prompt for tail in tails if self._is_clear(prompt := [*prefix, *tail], count)]

    def _is_clear(self, prompt: list[int], count: int) -> bool:
        try:
            expected_tokens(self.reference, prompt, count)
        except NearTieError:
            return False
        return True


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    made: dict[str, Model] = {}

    def model(kind: str) -> Model:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            reference = save_model(folder, kind)
            made[kind] = Model(folder, reference, TinyEngine(folder, **SIZES))
        return made[kind]

    return model


def at_rest(engine: TinyEngine) -> None:
    """Every block is back."""
    engine.engine.check_integrity()
    state: Any = engine.built.scheduler.stats()
    assert state["free_blocks"] == state["total_blocks"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [4, 5, 9, 17, 64])
def test_prompts_in_chunks(models: Callable[[str], Model], kind: str, chunk: int) -> None:
    model = models(kind)
    changes = {"max_batch_tokens_size": chunk, "reuse_cache": False}
    engine = TinyEngine(model.folder, **{**SIZES, **changes})
    pairs = [model.prompt(length) for length in (1, 4, 5, 18, 37)]
    ids = [engine.add(prompt, max_tokens=12, ignore_eos=True) for prompt, _ in pairs]
    engine.run()
    for request, (_, expected) in zip(ids, pairs, strict=True):
        assert engine.outcomes[request, 0].tokens == expected
    at_rest(engine)


@pytest.mark.parametrize("kind", KINDS)
def test_many_tokens(models: Callable[[str], Model], kind: str) -> None:
    """More than the rings of states hold, several times."""
    model = models(kind)
    pairs = [model.prompt(length, 60) for length in (3, 21)]
    ids = [model.engine.add(prompt, max_tokens=60, ignore_eos=True) for prompt, _ in pairs]
    model.engine.run()
    for request, (_, expected) in zip(ids, pairs, strict=True):
        assert model.engine.outcomes[request, 0].tokens == expected
    at_rest(model.engine)


@pytest.mark.parametrize("kind", KINDS)
def test_cached_prefixes(models: Callable[[str], Model], kind: str) -> None:
    model = models(kind)
    prompts = model.after(random_prompt(41, seed=8), range(8))
    assert len(prompts) > 4
    for prompt in prompts:
        for turn in range(2):
            request = model.engine.add(prompt, max_tokens=6, ignore_eos=True)
            model.engine.run()
            outcome = model.engine.outcomes[request, 0]
            assert outcome.tokens == expected_tokens(model.reference, prompt, 6)
            assert turn == 0 or outcome.cached >= 32
    # And again, in one batch.
    ids = [model.engine.add(prompt, max_tokens=6, ignore_eos=True) for prompt in prompts]
    model.engine.run()
    for request, prompt in zip(ids, prompts, strict=True):
        expected = expected_tokens(model.reference, prompt, 6)
        assert model.engine.outcomes[request, 0].tokens == expected
    at_rest(model.engine)


@pytest.mark.parametrize("kind", ["nemotron_h", "qwen3_5", "qwen3_5_moe_images"])
def test_preempted_sequences_begin_again(models: Callable[[str], Model], kind: str) -> None:
    model = models(kind)
    tight = {"kv_cache_mem_mb": 1, "max_batch_tokens_size": 64}
    engine = TinyEngine(model.folder, **{**SIZES, **tight})
    prompt, expected = model.prompt(30, 200)
    ids = [engine.add(prompt, max_tokens=200, ignore_eos=True, key=str(i)) for i in range(8)]
    engine.run()
    stats: Any = engine.built.scheduler.stats()
    assert stats["preemptions"] > 0
    for request in ids:
        assert engine.outcomes[request, 0].tokens == expected
    at_rest(engine)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [3, 16, 21])
def test_forks(models: Callable[[str], Model], kind: str, length: int) -> None:
    model = models(kind)
    prompt = random_prompt(length, seed=5)
    request = model.engine.add(
        prompt, n=4, max_tokens=20, ignore_eos=True, temperature=1.0, seed=3, logprobs=0
    )
    model.engine.run()
    outcomes = [model.engine.outcomes[request, index] for index in range(4)]
    assert len({tuple(each.tokens) for each in outcomes}) == 4
    for each in outcomes:
        logits = expected_logits(model.reference, [*prompt, *each.tokens])[length - 1 : -1]
        expected = logits.log_softmax(1)[range(20), each.tokens]
        actual = torch.tensor([entry.logprob for entry in each.logprobs])
        torch.testing.assert_close(actual, expected, rtol=0, atol=2e-3)
    at_rest(model.engine)


def test_whatever_a_free_state_holds_is_not_read(models: Callable[[str], Model]) -> None:
    model = models("qwen3_5")
    engine = TinyEngine(model.folder, **SIZES)
    for memory in engine.built.worker.runner.cache.memory:
        memory.view(torch.uint8).fill_(0xFF)  # not a number, in every type
    for length in (1, 18):
        prompt, expected = model.prompt(length)
        assert engine.tokens(prompt, max_tokens=12, ignore_eos=True) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_what_pads_a_graph_changes_no_state(models: Callable[[str], Model], kind: str) -> None:
    """Of six sequences that a graph was captured for, three are there."""
    model = models(kind)
    engine = TinyEngine(model.folder, **SIZES)
    runner = engine.built.worker.runner
    size = GraphSize(tokens=6, sequences=6, longest=1)
    inputs = GraphInputs(runner.cache, runner.device, size, 512, BLOCK)
    inputs.clear()
    runner._graphs = replays = Replays(runner._layers, inputs, size)  # type: ignore[assignment]
    pairs = [model.prompt(length, 60) for length in (3, 18, 33)]
    ids = [engine.add(prompt, max_tokens=60, ignore_eos=True) for prompt, _ in pairs]
    engine.run()
    assert replays.count >= 50
    for request, (_, expected) in zip(ids, pairs, strict=True):
        assert engine.outcomes[request, 0].tokens == expected
