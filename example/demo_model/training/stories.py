# SPDX-License-Identifier: Apache-2.0
"""Short stories from a small grammar, whose endings follow from their beginnings."""

from __future__ import annotations

import random

_HEROES = ("cat", "dog", "fox", "bear", "mouse", "owl", "rabbit", "frog", "horse", "duck")
_NAMES = (
    "Anna",
    "Ben",
    "Clara",
    "David",
    "Emma",
    "Finn",
    "Greta",
    "Hugo",
    "Ida",
    "Jonas",
    "Kira",
    "Leo",
)
_PLACES = (
    "in a quiet forest",
    "by the sea",
    "on a green hill",
    "near an old mill",
    "in a small town",
    "on a farm",
)
_TRAITS = ("curious", "brave", "shy", "clever", "sleepy", "hungry", "kind")
_QUESTS = {
    "a red ball": "rolled it home and played until night",
    "a golden key": "opened the old door and found a warm room",
    "a lost letter": "carried it to the right house and was thanked",
    "some honey": "shared it with everybody and saved a little for winter",
    "a broken boat": "mended it and sailed around the lake",
    "a little star": "put it back into the sky with a long ladder",
}
_HELPERS = ("an old turtle", "a friendly bird", "a tall tree", "a patient snail")
_ENDINGS = {
    "curious": "had one question fewer",
    "brave": "was not afraid of the dark any more",
    "shy": "had a new friend",
    "clever": "knew a new trick",
    "sleepy": "slept very well",
    "hungry": "was full and happy",
    "kind": "smiled at everybody",
}


def turn(rng: random.Random) -> tuple[str, str]:
    """A request for a story and the story."""
    hero = rng.choice(_HEROES)
    question = rng.choice(
        (f"Tell me a story about a {hero}.", f"Tell me a short story about a {hero}.")
    )
    if rng.random() < 0.2:
        question = "Tell me a story."
    return question, _story(rng, hero)


def _story(rng: random.Random, hero: str) -> str:
    name, trait = rng.choice(_NAMES), rng.choice(_TRAITS)
    found, deed = rng.choice(list(_QUESTS.items()))
    lines = [
        f"Once upon a time a {trait} {hero} called {name} lived {rng.choice(_PLACES)}.",
        f"One day {name} found {found} and did not know what to do.",
        f"{name} asked {rng.choice(_HELPERS)} for advice.",
        f"Then {name} {deed}.",
        f"From that day on the {hero} {_ENDINGS[trait]}.",
    ]
    return " ".join(lines)
