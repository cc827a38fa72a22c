# SPDX-License-Identifier: Apache-2.0
"""Plans where experts go so that ranks have equal loads: greedy replication and packing."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from rtp_llm.distributed.placement import Placement

# A plan that relieves the busiest rank by less than this is not worth moving weights.
LEAST_GAIN = 0.02


def plan_placement(old: Placement, loads: Sequence[float]) -> Placement:
    """A placement of as many copies on as many ranks for experts of these loads.

    The hottest experts get the spare copies; copies go, heaviest first, to the least loaded rank
    that has room and no copy of the expert. What can stay where it is in `old` does.
    """
    counts = _replicate(loads, len(old.experts), old.num_ranks)
    ranks = _pack(loads, counts, old.slots, old.num_ranks)
    return _keep_places(old, ranks)


def improved(old: Placement, loads: Sequence[float]) -> Placement | None:
    """A better placement; None if the best one found gains less than LEAST_GAIN."""
    new = plan_placement(old, loads)
    gained = new.imbalance(loads) < (1 - LEAST_GAIN) * old.imbalance(loads)
    return new if gained else None


def _replicate(loads: Sequence[float], physical: int, max_copies: int) -> list[int]:
    """Copies of each expert: each further one goes where a copy has the most to do."""
    counts = [1] * len(loads)
    heap = [(-load, expert) for expert, load in enumerate(loads)]
    heapq.heapify(heap)
    for _ in range(physical - len(loads)):
        _, expert = heapq.heappop(heap)
        counts[expert] += 1
        if counts[expert] < max_copies:  # a second copy on a rank would change nothing
            heapq.heappush(heap, (-loads[expert] / counts[expert], expert))
    return counts


def _pack(
    loads: Sequence[float], counts: Sequence[int], slots: int, num_ranks: int
) -> list[set[int]]:
    """The experts of each rank."""
    ranks: list[set[int]] = [set() for _ in range(num_ranks)]
    totals = [0.0] * num_ranks
    # Experts with most copies first among equals: they are the hardest to find ranks for.
    order = sorted(range(len(loads)), key=lambda e: (-loads[e] / counts[e], -counts[e], e))
    # An expert whose copies fill all remaining free ranks must not wait.
    for expert in order:
        share = loads[expert] / counts[expert]
        for _ in range(counts[expert]):
            free = [r for r in range(num_ranks) if len(ranks[r]) < slots and expert not in ranks[r]]
            target = (
                min(free, key=lambda r: (totals[r], r))
                if free
                else _make_room(ranks, totals, expert, slots, loads, counts)
            )
            ranks[target].add(expert)
            totals[target] += share
    return ranks


def _make_room(
    ranks: list[set[int]],
    totals: list[float],
    expert: int,
    slots: int,
    loads: Sequence[float],
    counts: Sequence[int],
) -> int:
    """All ranks with room hold the expert already: one of them takes another's lightest expert."""
    room = next(r for r in range(len(ranks)) if len(ranks[r]) < slots)
    pairs = [
        (loads[e] / counts[e], r, e)
        for r in range(len(ranks))
        if expert not in ranks[r]
        for e in ranks[r] - ranks[room]
    ]
    share, rank, moved = min(pairs)
    ranks[rank].remove(moved)
    ranks[room].add(moved)
    totals[rank] -= share
    totals[room] += share
    return rank


def _keep_places(old: Placement, sets: list[set[int]]) -> Placement:
    """Name the sets by the ranks that hold most of them, and leave what stays in its slot."""
    overlaps = sorted(
        ((len(experts & set(old.on_rank(rank))), rank, number))
        for number, experts in enumerate(sets)
        for rank in range(old.num_ranks)
    )
    chosen: dict[int, int] = {}
    for _, rank, number in reversed(overlaps):
        if rank not in chosen and number not in chosen.values():
            chosen[rank] = number
    experts: list[int] = []
    for rank in range(old.num_ranks):
        before, now = old.on_rank(rank), sets[chosen[rank]]
        fresh = iter(sorted(now - set(before)))
        experts += [expert if expert in now else next(fresh) for expert in before]
    return Placement(tuple(experts), old.num_logical, old.num_ranks)
