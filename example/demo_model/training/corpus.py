"""The text that the demo model is trained on: sums, facts and short stories, all made up here."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from example.demo_model.training import facts, stories, sums

Turn = tuple[str, str]
"""What the user says and what the assistant answers."""


@dataclass(frozen=True)
class Mixture:
    """Shares of sums and of facts among the turns; the others are stories."""

    sums: float
    facts: float


USUAL = Mixture(sums=0.66, facts=0.18)
MOSTLY_SUMS = Mixture(sums=0.85, facts=0.10)
_LONGEST_CHAT = 4


def conversations(seed: int, mixture: Mixture = USUAL) -> Iterator[list[Turn]]:
    """An endless stream of conversations of one to four turns, the same for the same seed."""
    rng = random.Random(seed)
    while True:
        yield [_turn(rng, mixture) for _ in range(rng.randint(1, _LONGEST_CHAT))]


def _turn(rng: random.Random, mixture: Mixture) -> Turn:
    kind = rng.random()
    if kind < mixture.sums:
        return _sum_turn(rng)
    if kind < mixture.sums + mixture.facts:
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
