# SPDX-License-Identifier: Apache-2.0
"""Engines over a model of full, window and recurrent layers give what an uncached run gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm.engine.messages import EngineStartError
from rtp_llm.models.causal_lm import CausalLM
from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.replays import Replays
from rtp_llm.testing.engine.scripted_proposer import ScriptedProposer
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.hybrid_model import (
    hybrid_model,
    plain_logits,
    plain_tokens,
)
from rtp_llm.testing.models.transformers_models import random_prompt
from rtp_llm.worker.inputs.graph_inputs import GraphInputs
from rtp_llm.worker.inputs.graph_sizes import GraphSize

BLOCK = 4
SIZES: dict[str, Any] = {
    "load_format": "dummy",
    "seq_size_per_block": BLOCK,
    "max_running_requests": 8,
    "max_batch_tokens_size": 16,
    "kv_cache_mem_mb": 4,
}
Plain = Callable[[list[int], int], list[int]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("hybrid")
    with hybrid_model(made), each_token_alone():
        yield made


@pytest.fixture(scope="module")
def engine(folder: Path) -> TinyEngine:
    return TinyEngine(folder, **SIZES)


@pytest.fixture(scope="module")
def model(engine: TinyEngine) -> CausalLM:
    return engine.built.worker.runner.model


@pytest.fixture(scope="module")
def plain(model: CausalLM) -> Plain:
    known: dict[tuple[tuple[int, ...], int], list[int]] = {}

    def tokens(prompt: list[int], count: int) -> list[int]:
        key = (tuple(prompt), count)
        if key not in known:
            known[key] = plain_tokens(model, prompt, count)
        return known[key]

    return tokens


def stats(engine: TinyEngine) -> Any:
    return engine.built.scheduler.stats()


def at_rest(engine: TinyEngine) -> None:
    """Every block is back."""
    engine.engine.check_integrity()
    state = stats(engine)
    assert state["free_blocks"] == state["total_blocks"]


def test_groups_have_blocks_and_bytes_of_their_own(engine: TinyEngine) -> None:
    cache = engine.built.worker.runner.cache
    assert [group.spec.kind for group in cache.groups] == ["full", "sliding_window", "recurrent"]
    assert cache.layer_group == (0, 2, 1, 2, 0)
    assert cache.recurrent == (2,)
    blocks = [memory.shape[2] for memory in cache.memory]
    # Four states for each sequence that runs, and the one that pads.
    assert blocks[2] == 1 + 4 * 8 and blocks[1] < blocks[0]
    assert sum(memory.nbytes for memory in cache.memory) <= 4 << 20


@pytest.mark.parametrize("chunk", [4, 5, 7, 12, 33, 64])
def test_chunks_of_any_size_give_the_same_tokens(folder: Path, plain: Plain, chunk: int) -> None:
    engine = TinyEngine(folder, **{**SIZES, "max_batch_tokens_size": chunk, "reuse_cache": False})
    lengths = (1, 4, 5, 17, 37)
    ids = [engine.add(random_prompt(length), max_tokens=6) for length in lengths]
    engine.run()
    for length, request in zip(lengths, ids, strict=True):
        expected = plain(random_prompt(length), 6)
        assert engine.outcomes[request, 0].tokens == expected, f"{length} tokens"
    at_rest(engine)


def test_states_of_cached_prefixes_are_gone_on_from(engine: TinyEngine, plain: Plain) -> None:
    shared = random_prompt(41)
    for tail in ([], [7, 8, 9], [7, 8, 10, 11, 12], [20]):
        prompt = [*shared, *tail]
        first = engine.add(prompt, max_tokens=6)
        engine.run()
        again = engine.add(prompt, max_tokens=6)
        engine.run()
        for request in (first, again):
            assert engine.outcomes[request, 0].tokens == plain(prompt, 6)
        # Snapshots are where chunks end: every 16 tokens.
        assert engine.outcomes[again, 0].cached >= 32
    at_rest(engine)


def test_concurrent_prompts_with_one_prefix_do_not_share_what_they_write(
    engine: TinyEngine, plain: Plain
) -> None:
    shared = random_prompt(35, seed=4)
    prompts = [[*shared, 30 + tail] for tail in range(6)]
    for _ in range(2):
        ids = [engine.add(prompt, max_tokens=6) for prompt in prompts]
        engine.run()
        for prompt, request in zip(prompts, ids, strict=True):
            assert engine.outcomes[request, 0].tokens == plain(prompt, 6)
    at_rest(engine)


def test_preempted_sequences_begin_again(folder: Path, plain: Plain) -> None:
    tight = {"kv_cache_mem_mb": 1, "max_running_requests": 16, "max_batch_tokens_size": 64}
    engine = TinyEngine(folder, **{**SIZES, **tight})
    capacity = (engine.ready.num_blocks - 1) * BLOCK
    prompt, count = random_prompt(30), 100
    assert 16 * 130 > 1.2 * capacity > 16 * 40
    ids = [engine.add(prompt, max_tokens=count, key=str(i)) for i in range(16)]
    engine.run()
    assert stats(engine)["preemptions"] > 0
    for request in ids:
        assert engine.outcomes[request, 0].tokens == plain(prompt, count)
    at_rest(engine)


@pytest.mark.parametrize("length", [3, 16, 21, 32])
def test_forks_read_one_state_and_write_their_own(
    engine: TinyEngine, plain: Plain, length: int
) -> None:
    prompt = random_prompt(length, seed=9)
    same = engine.add(prompt, n=3, max_tokens=6)
    engine.run()
    for index in range(3):
        assert engine.outcomes[same, index].tokens == plain(prompt, 6)
    at_rest(engine)


def test_forks_that_differ_have_the_log_probabilities_of_an_uncached_run(
    engine: TinyEngine, model: CausalLM
) -> None:
    prompt = random_prompt(22, seed=5)
    request = engine.add(prompt, n=4, max_tokens=7, temperature=1.0, seed=3, logprobs=0)
    engine.run()
    outcomes = [engine.outcomes[request, index] for index in range(4)]
    assert len({tuple(each.tokens) for each in outcomes}) == 4
    for each in outcomes:
        logits = plain_logits(model, [*prompt, *each.tokens])[len(prompt) - 1 : -1]
        expected = logits.log_softmax(1)[range(7), each.tokens]
        actual = torch.tensor([entry.logprob for entry in each.logprobs])
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)


def test_whatever_a_free_state_holds_is_not_read(folder: Path, plain: Plain) -> None:
    engine = TinyEngine(folder, **SIZES)
    for memory in engine.built.worker.runner.cache.memory:
        memory.view(torch.uint8).fill_(0xFF)  # not a number, in every type
    for length in (1, 20):
        assert engine.tokens(random_prompt(length), max_tokens=4) == plain(random_prompt(length), 4)


def test_graphs_get_the_blocks_of_states(folder: Path, plain: Plain) -> None:
    engine = TinyEngine(folder, **SIZES)
    runner = engine.built.worker.runner
    size = GraphSize(tokens=6, sequences=6, longest=1)
    inputs = GraphInputs(runner.cache, runner.device, size, 512, BLOCK)
    inputs.clear()
    runner._graphs = replays = Replays(runner._layers, inputs, size)  # type: ignore[assignment]
    prompts = [random_prompt(length) for length in (3, 18, 33)]
    ids = [engine.add(prompt, max_tokens=9) for prompt in prompts]
    engine.run()
    assert replays.count >= 8
    for prompt, request in zip(prompts, ids, strict=True):
        assert engine.outcomes[request, 0].tokens == plain(prompt, 9)


def test_drafts_are_refused(folder: Path) -> None:
    with pytest.raises(
        EngineStartError, match=r"recurrent states go back .* --num-speculative-tokens 7"
    ):
        TinyEngine(folder, proposer=ScriptedProposer({}), **SIZES)
