"""The text that the demo model is trained on: sums, facts and short stories, all made up here."""

from __future__ import annotations

import random
from collections.abc import Iterator

from example.demo_model.training import facts, stories, sums

Turn = tuple[str, str]
"""What the user says and what the assistant answers."""

_SUM_SHARE, _FACT_SHARE = 0.66, 0.18
_LONGEST_CHAT = 4


def conversations(seed: int) -> Iterator[list[Turn]]:
    """An endless stream of conversations of one to four turns, the same for the same seed."""
    rng = random.Random(seed)
    while True:
        yield [_turn(rng) for _ in range(rng.randint(1, _LONGEST_CHAT))]


def _turn(rng: random.Random) -> Turn:
    kind = rng.random()
    if kind < _SUM_SHARE:
        return _sum_turn(rng)
    if kind < _SUM_SHARE + _FACT_SHARE:
        return rng.choice(facts.TURNS)
    return stories.turn(rng)


def _sum_turn(rng: random.Random) -> Turn:
    while True:
        a, b = rng.randint(0, sums.LARGEST_TERM), rng.randint(0, sums.LARGEST_TERM)
        if not sums.is_held_out(a, b):
            break
    asked = sums.question(a, b)
    if rng.random() < 0.2:
        asked = rng.choice(
            (f"{a} + {b}", f"{a} + {b} = ?", f"Please add {a} and {b}.", f"{a} plus {b}?")
        )
    return asked, sums.answer(a, b)
