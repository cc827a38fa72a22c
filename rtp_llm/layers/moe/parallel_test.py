# SPDX-License-Identifier: Apache-2.0
"""Tests of what happens to selections on the way to experts of several ranks."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch

from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.device.cpu import CpuDevice
from rtp_llm.layers import LayerOptions, MoeBlock
from rtp_llm.layers.moe.config import MoeConfig
from rtp_llm.layers.moe.parallel import ParallelExperts, ParallelOptions, fake_balance
from rtp_llm.testing.ranks import run_ranks


@pytest.mark.parametrize(("experts", "k", "ranks"), [(8, 2, 2), (16, 4, 4), (12, 3, 2)])
def test_even_selections_of_all_ranks_load_every_expert_alike(experts, k, ranks):
    config = MoeConfig(hidden_size=4, num_experts=experts, top_k=k, intermediate_size=4)
    counts = torch.zeros(experts, dtype=torch.int64)
    for rank in range(ranks):
        ids = torch.zeros(experts, k, dtype=torch.int32)
        weights = torch.zeros(experts, k)
        fake_balance(config, rank, ranks)(ids, weights)
        assert (weights == 1).all()
        counts += torch.bincount(ids.flatten(), minlength=experts)
    assert (counts == ranks * k).all()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_even_selections_of_small_batches_load_all_ranks_alike(ranks):
    """One token of each rank: what each chooses alone is even only over all ranks together."""
    config = MoeConfig(hidden_size=4, num_experts=16, top_k=4, intermediate_size=4)
    local = 16 // ranks
    chosen = []
    for rank in range(ranks):
        ids, weights = torch.zeros(1, 4, dtype=torch.int32), torch.zeros(1, 4)
        fake_balance(config, rank, ranks)(ids, weights)
        first = rank * max(local // ranks, 1)
        expected = [(rank + i) % ranks * local + (first + i // ranks) % local for i in range(4)]
        assert ids[0].tolist() == expected
        chosen += expected
    assert len(set(chosen)) == 4 * ranks


def test_choices_of_trial_steps_are_no_load():
    """All their tokens are the same one, before the model is attached."""
    config = MoeConfig(hidden_size=16, num_experts=6, top_k=2, intermediate_size=8)
    world = SimpleNamespace(rank=0, size=1, tensors=None, host=None)
    hooks = ParallelExperts(world, CpuDevice(), config, (True,), ParallelOptions(counts=True))
    block = MoeBlock(
        0, config, LayerOptions(ModelSettings(dtype="float32"), torch.device("cpu"), experts=hooks)
    )
    count, _ = block.steps
    count(torch.zeros(100, 2, dtype=torch.int32), torch.ones(100, 2))
    hooks.attach(block)
    count(torch.tensor([[3, 5]], dtype=torch.int32), torch.ones(1, 2))
    assert hooks.loads.take().tolist() == [[0, 0, 0, 1, 0, 1]]


def test_rows_of_padding_choose_no_expert_and_are_no_load():
    config = MoeConfig(hidden_size=16, num_experts=6, top_k=2, intermediate_size=8)
    world = SimpleNamespace(rank=0, size=1, tensors=None, host=None)
    hooks = ParallelExperts(world, CpuDevice(), config, (True,), ParallelOptions(counts=True))
    steps = hooks.steps(0, config)
    chosen = torch.tensor([[1, 5], [2, 1], [0, 3], [0, 3]], dtype=torch.int32)
    for tokens in (2, 0, 4):
        ids = chosen.clone()
        with hooks.padded(4, torch.tensor([tokens], dtype=torch.int32), alone=True):
            for step in steps:
                step(ids, torch.ones(4, 2))
        assert torch.equal(ids[:tokens], chosen[:tokens])
        assert (ids[tokens:] == -1).all()
        counted = torch.bincount(chosen[:tokens].flatten(), minlength=6)
        assert hooks.loads.take().tolist() == [counted.tolist()]
    ids = chosen.clone()  # and outside all rows hold a token
    for step in steps:
        step(ids, torch.ones(4, 2))
    assert torch.equal(ids, chosen)
    assert hooks.loads.take().sum() == chosen.numel()


def test_experts_of_other_tensor_parallel_ranks_are_left_to_them():
    config = MoeConfig(hidden_size=16, num_experts=8, top_k=2, intermediate_size=8)
    here = []
    for part, rank in itertools.product((range(4), range(4, 8)), range(2)):
        world = SimpleNamespace(rank=rank, size=2, tensors=None, host=None)
        hooks = ParallelExperts(world, CpuDevice(), config, (True,), ParallelOptions(), part=part)
        here += hooks.dispatcher(0, config).local_experts
        ids = torch.tensor([[0, 3], [4, 7], [2, 6]], dtype=torch.int32)
        for step in hooks.steps(0, config):
            step(ids, torch.ones(3, 2))
        # Numbered from the first of the part, whichever of its ranks has them.
        assert ids.tolist() == (
            [[-1, -1], [0, 3], [-1, 2]] if part.start else [[0, 3], [-1, -1], [2, -1]]
        )
    assert here == list(range(8))


TOKENS, RANKS = 6, 3


def _rows_computed(world):
    """Rows that this rank's experts compute, first in a trial step, then in ones agreed upon."""
    config = MoeConfig(hidden_size=16, num_experts=6, top_k=2, intermediate_size=8)
    options = ParallelOptions(padded_tokens=2)
    hooks = ParallelExperts(world, CpuDevice(), config, (True,), options)
    cpu = torch.device("cpu")
    torch.manual_seed(0)
    alone = MoeBlock(0, config, LayerOptions(ModelSettings(dtype="float32"), cpu))
    block = MoeBlock(0, config, LayerOptions(ModelSettings(dtype="float32"), cpu, experts=hooks))
    for parameter in alone.parameters():
        parameter.data.normal_()
    here = list(block.dispatcher.local_experts)
    for mine, all_of_them in zip(
        block.experts.parameters(), alone.experts.parameters(), strict=True
    ):
        mine.data.copy_(all_of_them.data[here])
    calls = []
    execute = block.executor.execute
    block.executor.execute = lambda dispatched: (
        calls.append(len(dispatched.x)) or execute(dispatched)
    )
    torch.manual_seed(world.rank)
    for target, tokens in [(None, TOKENS), (0, TOKENS), (1, TOKENS), (2, 2), (None, TOKENS)]:
        if calls:
            hooks.modes.begin(tokens)
        else:
            target = 2  # the trial's choice, which must not matter
        x, weights = torch.randn(tokens, 16), torch.rand(tokens, 2)
        ids = torch.rand(tokens, 6).argsort(1)[:, :2].int()
        if target is not None:  # all tokens of all ranks to one of them
            ids = ids % 2 + 2 * target
        count = len(calls)
        torch.testing.assert_close(block.route(x, ids, weights), alone.route(x, ids, weights))
        if len(calls) == count:
            calls.append(0)
    return calls


def test_a_trial_step_brings_each_rank_what_no_choice_of_experts_exceeds(tmp_path):
    results = run_ranks(tmp_path, RANKS, _rows_computed)
    most = RANKS * TOKENS
    for rank, rows in enumerate(results):
        assert rows[0] == most
        assert rows[1:3] == [most * (rank == 0), most * (rank == 1)]
        assert rows[3] == RANKS * 2  # of fixed size
        assert rows[4] <= most
