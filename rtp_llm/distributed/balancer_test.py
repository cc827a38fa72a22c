# SPDX-License-Identifier: Apache-2.0
"""Tests of live balancing: outputs stay, loads even out, a slow rank delays all."""

from __future__ import annotations

import itertools
import threading

import torch

from rtp_llm.device.cpu import CpuDevice
from rtp_llm.distributed.balancer import BalancedLayer, BalanceOptions, Balancer
from rtp_llm.distributed.dispatch import LowLatencyAllToAll
from rtp_llm.distributed.expert_load import ExpertLoad
from rtp_llm.distributed.lockstep import Lockstep
from rtp_llm.distributed.placement import ExpertMap, Placement
from rtp_llm.distributed.rows import TokenRows
from rtp_llm.distributed.weight_move import transfers
from rtp_llm.testing.ranks import run_ranks

EXPERTS, REDUNDANT, HIDDEN, LAYERS, TOKENS = 8, 2, 6, 3, 16
HOTTEST = 2
SKEW = (1, 6)  # of each rank's choices


class _Rank:
    """A rank's layers, stepped by hand: each expert multiplies by a matrix of its own."""

    def __init__(self, world, options):
        generator = torch.Generator().manual_seed(1)
        # The first 8 bits of a scale and a matrix: two stacked weights of different types.
        self.matrices = torch.randn(LAYERS, EXPERTS, HIDDEN, HIDDEN, generator=generator)
        self.scales = torch.randint(1, 5, (LAYERS, EXPERTS, 1), generator=generator).byte()
        self.world, self.lockstep = world, Lockstep(world.host)
        first = Placement.initial(EXPERTS, REDUNDANT, world.size)
        here = list(first.on_rank(world.rank))
        self.layers = [
            BalancedLayer(
                first,
                ExpertMap(first, world.rank, torch.device("cpu")),
                (self.matrices[i, here].clone(), self.scales[i, here].clone()),
            )
            for i in range(LAYERS)
        ]
        self.loads = ExpertLoad(LAYERS, EXPERTS, torch.device("cpu"))
        self.balancer = Balancer(world, CpuDevice(), self.layers, self.loads, options)
        self.generator = torch.Generator().manual_seed(2 + world.rank)

    def step(self):
        """One step; the largest difference from what the experts give in one place."""
        agreed = self.lockstep.agree(TOKENS, self.balancer.ready)
        self.balancer.before_step(agreed.ready)
        error = max(self._layer(number) for number in range(LAYERS))
        self.balancer.after_step()
        return error

    def _layer(self, number):
        # Rank 1's tokens choose experts 2, 3 and 4, all on rank 0, far more often, rank 0's any:
        # only who hears of both knows the loads.
        draws = torch.rand(TOKENS, 1, generator=self.generator)
        ids = (HOTTEST + (EXPERTS * draws ** SKEW[self.world.rank]).int()) % EXPERTS
        x = torch.randn(TOKENS, HIDDEN, generator=self.generator)
        chosen = ids[:, 0].long()
        expected = torch.einsum("thk,tk->th", self.matrices[number, chosen], x)
        expected *= self.scales[number, chosen]
        self.loads.counter(number)(ids, torch.ones(TOKENS, 1))
        layer = self.layers[number]
        layer.map.apply(ids)
        all_to_all = LowLatencyAllToAll(self.world.tensors, layer.placement.slots, TOKENS)
        rows, sent = all_to_all.dispatch(TokenRows(x, ids, torch.ones(TOKENS, 1)))
        matrices, scales = layer.weights
        slots = rows.ids[:, 0].long().clamp(min=0)
        results = torch.einsum("thk,tk->th", matrices[slots], rows.x) * scales[slots]
        return (all_to_all.combine(results, sent) - expected).abs().max().item()


def _balance(world):
    options = BalanceOptions("all", update_steps=4, layers_per_step=2, policy="round", window=2)
    rank = _Rank(world, options)
    first = [layer.placement for layer in rank.layers]
    errors = [rank.step() for _ in range(40)]
    # Experts move in the background, when they get a core; all ranks swap in the same step.
    while any(old == layer.placement for old, layer in zip(first, rank.layers, strict=True)):
        errors.append(rank.step())
    order = [(e - HOTTEST) % EXPERTS for e in range(EXPERTS)]
    shares = [[(e / EXPERTS) ** (1 / skew) for e in range(EXPERTS + 1)] for skew in SKEW]
    counts = [sum(share[e + 1] - share[e] for share in shares) for e in order]
    after = [layer.placement.imbalance(counts) for layer in rank.layers]
    before = first[0].imbalance(counts)
    return max(errors), rank.balancer.swaps, before, after, [x.placement for x in rank.layers]


def test_outputs_stay_while_experts_move_and_loads_even_out(tmp_path):
    results = run_ranks(tmp_path, 2, _balance)
    for error, swaps, before, after, placements in results:
        assert error < 1e-4
        assert swaps >= 2
        assert max(after) < 1.1 < 1.3 < before
        assert placements == results[0][4]


LATE = 30


def _slow_rank(world):
    begins = threading.Event()
    options = BalanceOptions("eplb", update_steps=3, policy="round")
    rank = _Rank(world, options)
    if world.rank == 1:
        # Its side thread begins late: neither rank may swap before it is ready.
        real = rank.balancer._world.moves.exchange

        def late(sends, receives):
            assert begins.wait(60)
            real(sends, receives)

        rank.balancer._world.moves.exchange = late
    for number in itertools.count():
        if number == LATE:
            begins.set()
        assert rank.step() < 1e-4
        if rank.balancer.swaps:
            return number
    raise AssertionError("unreachable")


def test_a_slow_rank_delays_the_swap_on_all_ranks(tmp_path):
    zero, one = run_ranks(tmp_path, 2, _slow_rank)
    assert zero == one > LATE


def _agreements(world):
    lockstep = Lockstep(world.host)
    lockstep.seen = 7
    first = lockstep.agree(tokens=3 * world.rank)
    lockstep.seen += world.rank
    second = lockstep.agree(0, ready=world.rank == 0)
    lockstep.seen = 8
    third = lockstep.agree(0)
    fourth = lockstep.agree(0, has_more=world.rank == 1)
    lockstep.stopping = world.rank == 1
    return [first, second, third, fourth, lockstep.agree(0)]


def test_ranks_agree(tmp_path):
    zero, one = run_ranks(tmp_path, 2, _agreements)
    assert zero == one
    first, second, third, fourth, last = zero
    assert (first.tokens, first.settled, first.ready, first.idle) == (3, True, True, False)
    assert (second.tokens, second.settled, second.ready, second.idle) == (0, False, False, False)
    assert third.idle
    assert fourth.tokens == 0 and not fourth.idle  # one has a sequence for later steps
    assert last.stop and not last.idle


def test_only_what_changes_is_moved_and_from_the_own_rank_if_it_is_there():
    old = Placement((0, 1, 2, 3, 4, 0), 5, 2)
    new = Placement((2, 1, 4, 3, 0, 2), 5, 2)
    moves = [(m.source, m.source_slot, m.target, m.target_slot) for m in transfers(old, new)]
    assert moves == [(0, 2, 0, 0), (1, 1, 0, 2), (1, 2, 1, 1), (0, 2, 1, 2)]
