# SPDX-License-Identifier: Apache-2.0
"""Chooses which layers are balanced next."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

POLICIES = ("round", "random", "most_unbalanced_layer", "mix")


class LayerChoice:
    """Chooses `count` of `num_layers` layers at each call, by a policy.

    `round` takes them in turn, `random` any (the same ones for the same seed),
    `most_unbalanced_layer` the layers with the largest imbalance, and `mix` alternates between
    those and a layer in turn, so that no layer is forgotten.
    """

    def __init__(self, policy: str, num_layers: int, count: int, seed: int = 0) -> None:
        if policy not in POLICIES:
            raise ValueError(f"balance_method {policy!r} is not one of {', '.join(POLICIES)}")
        self._choose: Callable[[Sequence[float]], list[int]] = {
            "round": self._in_turn,
            "random": self._any,
            "most_unbalanced_layer": self._worst,
            "mix": self._mixed,
        }[policy]
        self._num_layers = num_layers
        self._count = min(count, num_layers)
        self._random = random.Random(seed)
        self._next = 0
        self._turn = False

    def next(self, imbalances: Sequence[float]) -> list[int]:
        """The layers to balance now; `imbalances` [layers] as Placement.imbalance gives them."""
        return self._choose(imbalances)

    def _in_turn(self, _: Sequence[float]) -> list[int]:
        chosen = [(self._next + i) % self._num_layers for i in range(self._count)]
        self._next = (self._next + self._count) % self._num_layers
        return chosen

    def _any(self, _: Sequence[float]) -> list[int]:
        return self._random.sample(range(self._num_layers), self._count)

    def _worst(self, imbalances: Sequence[float]) -> list[int]:
        order = sorted(range(self._num_layers), key=lambda layer: (-imbalances[layer], layer))
        return order[: self._count]

    def _mixed(self, imbalances: Sequence[float]) -> list[int]:
        self._turn = not self._turn
        return self._worst(imbalances) if self._turn else self._in_turn(imbalances)
