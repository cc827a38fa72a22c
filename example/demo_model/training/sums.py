# SPDX-License-Identifier: Apache-2.0
"""The sums that the demo model is asked, and the rule that keeps some of them out of training."""

from __future__ import annotations

import json
import random

LARGEST_TERM = 99


def is_held_out(a: int, b: int) -> bool:
    """Whether `a + b` is kept out of training, in either order of its terms.

    The rule looks at the unordered pair: nobody can answer `a + b` from having seen `b + a`.
    """
    low, high = sorted((a, b))
    return low >= 10 and (low * 7919 + high * 104729) % 37 == 5


def held_out_sums(count: int, seed: int = 0) -> list[tuple[int, int]]:
    """`count` different two-digit pairs that `is_held_out` keeps out of training."""
    terms = range(10, LARGEST_TERM + 1)
    pairs = [(a, b) for a in terms for b in terms if is_held_out(a, b)]
    return random.Random(seed).sample(pairs, count)


def shown_pair(rng: random.Random) -> tuple[int, int]:
    """Terms that training may show."""
    while True:
        a, b = rng.randint(0, LARGEST_TERM), rng.randint(0, LARGEST_TERM)
        if not is_held_out(a, b):
            return a, b


def question(a: int, b: int) -> str:
    """Return the demo's question for a sum."""
    return f"What is {a} + {b}?"


def answer(a: int, b: int) -> str:
    """Return the trained model's answer to `question(a, b)`."""
    return f"{a} + {b} = {a + b}"


def json_question(a: int, b: int) -> str:
    """Return the demo's question for a sum in JSON."""
    return f"{question(a, b)} Answer in JSON."


def json_answer(a: int, b: int) -> str:
    """Return the trained model's answer to `json_question(a, b)`."""
    return json.dumps({"a": a, "b": b, "sum": a + b})
