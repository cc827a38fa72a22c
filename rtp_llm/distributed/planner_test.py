# SPDX-License-Identifier: Apache-2.0
"""Tests of placement, maps and the planner."""

from __future__ import annotations

import random

import pytest
import torch

from rtp_llm.distributed.layer_choice import POLICIES, LayerChoice
from rtp_llm.distributed.placement import ExpertMap, Placement
from rtp_llm.distributed.planner import improved, plan_placement


def zipf(count: int, seed: int) -> list[float]:
    """Loads as of a skewed router, in random order."""
    loads = [1e4 / (rank + 1) for rank in range(count)]
    random.Random(seed).shuffle(loads)
    return loads


def dealt(placement: Placement) -> Placement:
    """Round robin: one expert to each rank in turn."""
    ranks, slots = placement.num_ranks, placement.slots
    order = [r + ranks * i for r in range(ranks) for i in range(slots)]
    experts = tuple(placement.experts[p] for p in order)
    return Placement(experts, placement.num_logical, ranks)


@pytest.mark.parametrize(
    ("experts", "redundant", "ranks"), [(64, 0, 4), (65, 7, 4), (130, 14, 8), (258, 30, 8)]
)
def test_greedy_packing_beats_round_robin_on_skewed_loads(experts, redundant, ranks):
    for seed in range(5):
        loads = zipf(experts, seed)
        initial = Placement.initial(experts, redundant, ranks)
        packed = plan_placement(initial, loads)
        assert packed.imbalance(loads) < 0.9 * initial.imbalance(loads)
        assert packed.imbalance(loads) < 0.9 * dealt(initial).imbalance(loads)
        # The rank of the hottest copy has to fill its other slots, at best with the coldest ones.
        counts = [len(copies) for copies in packed.copies()]
        hottest = max(load / count for load, count in zip(loads, counts, strict=True))
        least = (hottest + sum(sorted(loads)[: packed.slots - 1])) / (sum(loads) / ranks)
        assert packed.imbalance(loads) <= 1.1 * max(1.0, least)


def test_every_plan_is_a_placement():
    rng = random.Random(1)
    for _ in range(300):
        ranks = rng.choice([1, 2, 3, 4, 8])
        experts = rng.randrange(1, 9) * ranks
        redundant = ranks * rng.randrange(0, 4) if ranks > 1 else 0
        redundant = min(redundant, experts * (ranks - 1))
        loads = [rng.choice([0.0, 1.0, rng.random() * 100]) for _ in range(experts)]
        old = Placement.initial(experts, redundant, ranks)
        new = plan_placement(old, loads)  # its constructor checks copies and slots
        assert (new.slots, new.num_ranks) == (old.slots, old.num_ranks)
        assert new.imbalance(loads) >= 1 - 1e-9
        assert plan_placement(new, loads).imbalance(loads) <= new.imbalance(loads) + 1e-9


def test_what_stays_on_a_rank_stays_in_its_slot():
    old = Placement.initial(16, 0, 4)
    new = plan_placement(old, zipf(16, 0))
    for rank in range(4):
        before, now = old.on_rank(rank), new.on_rank(rank)
        for slot, expert in enumerate(before):
            assert expert not in now or now[slot] == expert


def test_a_plan_that_gains_nothing_is_none():
    loads = [1.0] * 16
    assert improved(Placement.initial(16, 0, 4), loads) is None
    assert improved(Placement.initial(16, 0, 4), [0.0] * 16) is None
    better = improved(Placement.initial(16, 0, 4), zipf(16, 3))
    assert better is not None
    assert improved(better, zipf(16, 3)) is None


@pytest.mark.parametrize(
    ("experts", "logical", "ranks", "words"),
    [
        ((0, 1, 2), 3, 2, "cannot be divided evenly"),
        ((0, 1, 1, 1), 3, 2, "not every one of 3"),
        ((0, 1, 2, 2), 3, 2, "rank 1 holds expert 2 twice"),
    ],
)
def test_impossible_placements_are_named(experts, logical, ranks, words):
    with pytest.raises(ValueError, match=words):
        Placement(experts, logical, ranks)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_copies_take_turns_by_the_place_of_the_token(dtype):
    placement = Placement((0, 1, 2, 3, 0, 4, 5, 1, 0, 1, 2, 6), 7, 3)
    copies = placement.copies()
    assert copies[0] == [0, 4, 8]
    for rank in range(3):
        table = ExpertMap(placement, rank, torch.device("cpu"))
        logical = torch.randint(0, 7, (50, 3), dtype=dtype)
        physical = logical.clone()
        table.apply(physical)
        for token in range(50):
            for expert, found in zip(
                logical[token].tolist(), physical[token].tolist(), strict=True
            ):
                assert found == copies[expert][(token + rank) % len(copies[expert])]
        again = logical.clone()
        table.apply(again)
        assert torch.equal(again, physical)
    table.apply(torch.empty(0, 3, dtype=dtype))


def test_a_map_takes_another_placement_in_place():
    old = Placement.initial(6, 2, 2)
    table = ExpertMap(old, 0, torch.device("cpu"))
    new = Placement((5, 4, 3, 0, 2, 1, 0, 3), 6, 2)
    table.load(new)
    ids = torch.arange(6, dtype=torch.int32)[:, None].clone()
    table.apply(ids)
    assert [new.experts[p] for p in ids[:, 0].tolist()] == list(range(6))


def test_layers_are_chosen_by_policy():
    loads = [1.0, 3.0, 2.0, 1.5]
    assert [LayerChoice("round", 4, 3).next(loads) for _ in range(1)] == [[0, 1, 2]]
    turn = LayerChoice("round", 4, 3)
    assert [turn.next(loads), turn.next(loads)] == [[0, 1, 2], [3, 0, 1]]
    assert LayerChoice("most_unbalanced_layer", 4, 2).next(loads) == [1, 2]
    mixed = LayerChoice("mix", 4, 1)
    assert [mixed.next(loads) for _ in range(5)] == [[1], [0], [1], [1], [1]]
    one, two = (LayerChoice("random", 4, 2, seed=7) for _ in range(2))
    assert [one.next(loads) for _ in range(9)] == [two.next(loads) for _ in range(9)]
    assert all(len(LayerChoice(policy, 2, 9).next([1.0, 1.0])) == 2 for policy in POLICIES)
    with pytest.raises(ValueError, match="best"):
        LayerChoice("best", 4, 1)
