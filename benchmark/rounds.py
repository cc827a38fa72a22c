# SPDX-License-Identifier: Apache-2.0
"""Interleaved measurements: each round runs every contender once, so that noise hits all alike."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """The values of all rounds, and how they are read."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> tuple[float, float]:
        """Return the smallest and largest value."""
        return min(self.values), max(self.values)


def interleave(contenders: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, Figure]:
    """Run all contenders ``rounds`` times in turn, after one run each that does not count.

    The order turns round by one each time, so that nobody always follows the same one.
    """
    names = list(contenders)
    for name in names:
        contenders[name]()
    values: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        gc.collect()
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            values[name].append(contenders[name]())
    return {name: Figure(tuple(each)) for name, each in values.items()}


def least_cpu_seconds(rounds: int, *works: Callable[[], object]) -> list[float]:
    """The least CPU seconds of each work, all threads counted; they take turns."""
    found = [math.inf] * len(works)
    for _ in range(rounds):
        for place, work in enumerate(works):
            began = time.process_time()
            work()
            found[place] = min(found[place], time.process_time() - began)
    return found
