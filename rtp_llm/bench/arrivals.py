# SPDX-License-Identifier: Apache-2.0
"""When requests are sent: all at once, or at a rate with random gaps between them."""

from __future__ import annotations

import itertools
import math
import random


def arrivals(count: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Send times of ``count`` requests, in seconds from the start.

    ``rate``: requests per second, met exactly on average over the run; infinite: all at once.
    ``burstiness``: shape of the gamma distribution of the gaps; 1: a Poisson process, below 1:
    burstier, infinite: even gaps.
    """
    if math.isinf(rate):
        return [0.0] * count
    if math.isinf(burstiness):
        return [number / rate for number in range(1, count + 1)]
    source = random.Random(seed)
    scale = 1 / (rate * burstiness)
    gaps = [source.gammavariate(burstiness, scale) for _ in range(count)]
    times = list(itertools.accumulate(gaps))
    stretch = count / rate / times[-1] if times[-1] else 1.0
    return [time * stretch for time in times]
