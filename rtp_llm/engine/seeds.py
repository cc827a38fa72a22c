# SPDX-License-Identifier: Apache-2.0
"""A seed for every sequence: the request's own, or one drawn from the engine's."""

from __future__ import annotations

_MASK = 2**64 - 1


class SeedSource:
    """Gives the n-th request without a seed always the same seed, for an engine with this one."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._drawn = 0

    def seeds_for(self, seed: int | None, count: int) -> list[int]:
        """``count`` signed 64-bit seeds; the first one is ``seed`` itself where it is given."""
        if seed is None:
            self._drawn += 1
            seed = _mix(self._seed, self._drawn)
        return [seed, *(_mix(seed, index) for index in range(1, count))]


def _mix(seed: int, number: int) -> int:
    """The splitmix64 finaliser (Steele et al., 2014) over a seed and a counter, as int64."""
    z = (seed + number * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    z ^= z >> 31
    return z - 2**64 if z >= 2**63 else z
