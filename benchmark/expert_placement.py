# SPDX-License-Identifier: Apache-2.0
"""How evenly experts are placed: in order, round robin, and by the planner.

Loads are 1/k for the k-th expert of a random order, as of a skewed router; the figure is the
busiest rank's load over the mean. No device is used.
"""

from __future__ import annotations

import random

from rtp_llm.distributed.placement import Placement
from rtp_llm.distributed.planner import plan_placement

_CASES = ((64, 0, 4), (64, 8, 4), (128, 0, 8), (128, 16, 8), (256, 32, 8), (256, 32, 32))
_SEEDS = 5


def round_robin(placement: Placement) -> Placement:
    """Assign physical experts to the ranks round robin."""
    ranks, logical = placement.num_ranks, placement.num_logical
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    for physical, expert in enumerate(placement.experts):
        # The second copy goes to a different rank from the first.
        dealt[(physical + physical // logical) % ranks].append(expert)
    return Placement(tuple(e for each in dealt for e in each), logical, ranks)


def main() -> None:
    """Prints a row of a table for each case."""
    for experts, spare, ranks in _CASES:
        sums = [0.0] * 3
        for seed in range(_SEEDS):
            loads = [1 / (k + 1) for k in range(experts)]
            random.Random(seed).shuffle(loads)
            first = Placement.initial(experts, spare, ranks)
            places = (first, round_robin(first), plan_placement(first, loads))
            sums = [s + p.imbalance(loads) for s, p in zip(sums, places, strict=True)]
        means = " | ".join(f"{each / _SEEDS:.2f}" for each in sums)
        print(f"| {experts}, {spare}, {ranks} | {means} |")


if __name__ == "__main__":
    main()
