# SPDX-License-Identifier: Apache-2.0
"""The text that the demo model is trained on: sums, facts and short stories, all made up here."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from example.demo_model.training import facts, stories, sums

Turn = tuple[str, str]
"""What the user says and what the assistant answers."""


class Chat(NamedTuple):
    """The turns of a conversation, and its system message: "" for none."""

    turns: list[Turn]
    system: str = ""


@dataclass(frozen=True)
class Mixture:
    """Shares of sums, facts and sums in JSON among the turns; the others are stories."""

    sums: float
    facts: float
    json: float = 0.0


USUAL = Mixture(sums=0.66, facts=0.18)
MOSTLY_SUMS = Mixture(sums=0.85, facts=0.10)
WITH_JSON = Mixture(sums=0.55, facts=0.18, json=0.14)
MORE_JSON = Mixture(sums=0.40, facts=0.16, json=0.32)
_LONGEST_CHAT = 4


def conversations(seed: int, mixture: Mixture = USUAL) -> Iterator[Chat]:
    """An endless stream of conversations of one to four turns, the same for the same seed."""
    rng = random.Random(seed)
    while True:
        yield Chat([_turn(rng, mixture) for _ in range(rng.randint(1, _LONGEST_CHAT))])


def _turn(rng: random.Random, mixture: Mixture) -> Turn:
    kind = rng.random()
    if kind < mixture.sums:
        return _sum_turn(rng)
    if kind < mixture.sums + mixture.facts:
        return rng.choice(facts.TURNS)
    if kind >= 1 - mixture.json:
        a, b = sums.shown_pair(rng)
        return sums.json_question(a, b), sums.json_answer(a, b)
    return stories.turn(rng)


def _sum_turn(rng: random.Random) -> Turn:
    a, b = sums.shown_pair(rng)
    question = sums.question(a, b)
    if rng.random() < 0.2:
        question = rng.choice(
            (f"{a} + {b}", f"{a} + {b} = ?", f"Please add {a} and {b}.", f"{a} plus {b}?")
        )
    return question, sums.answer(a, b)
