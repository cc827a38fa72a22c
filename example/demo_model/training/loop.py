# SPDX-License-Identifier: Apache-2.0
"""A training loop that continues where it was interrupted, with the same result."""

from __future__ import annotations

import itertools
import math
import pathlib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from example.demo_model.training import calculator, corpus

Batch = tuple[torch.Tensor, torch.Tensor]
"""Token ids and labels, both [rows, tokens]."""

_BETAS = (0.9, 0.98)
_SCHEDULER = torch.optim.lr_scheduler


@dataclass(frozen=True)
class Recipe:
    """How one part is trained; `trapezoid` keeps the rate until the last quarter of the steps.

    A step sees `rows` without tools, and `tool_rows` with them, of `length` tokens each; `wrong` is
    the share of the tool's responses that are not the sum.
    """

    steps: int
    rows: int
    lr: float
    decay: float = 0.05
    seed: int = 1
    schedule: Literal["one_cycle", "trapezoid"] = "one_cycle"
    mixture: corpus.Mixture = corpus.USUAL
    tool_rows: int = 0
    length: int = 256
    wrong: float = calculator.WRONG
    report: int = 250
    save: int = 50

    def decisive(self) -> dict[str, Any]:
        """All settings that decide the weights."""
        settings = asdict(self)
        return {key: settings[key] for key in settings if key not in ("report", "save")}

    def rate(self, step: int) -> float:
        """The trapezoid at `step`, as a part of `lr`: 60 steps up, flat, then down to 2%."""
        warm = min(61, self.steps)
        left = (self.steps - step) / math.ceil(self.steps / 4)
        return min((step + 1) / warm, 1.0, max(left, 0.02))


class Fit:
    """The weights that are trained, their optimizer, and how many steps they have seen."""

    def __init__(self, model: torch.nn.Module, recipe: Recipe, checkpoint: pathlib.Path) -> None:
        """`checkpoint`: where the state is kept; what is there already is continued."""
        self._model, self._recipe, self._checkpoint = model, recipe, checkpoint
        self._optimizer = torch.optim.AdamW(
            model.parameters(), lr=recipe.lr, betas=_BETAS, weight_decay=recipe.decay
        )
        self._schedule = self._make_schedule()
        self.done = 0
        if checkpoint.exists():
            self._resume()

    def run(
        self,
        stream: Iterator[Batch],
        loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        report: Callable[[], str],
        stop_at: int | None = None,
    ) -> None:
        """Train to the recipe's last step, or to `stop_at` as an interruption would.

        `stream` begins at the first step. `report` is asked every `recipe.report` steps.
        """
        recipe, began, first = self._recipe, time.monotonic(), self.done
        last = recipe.steps if stop_at is None else min(stop_at, recipe.steps)
        for ids, labels in itertools.islice(stream, first, last):
            loss = self._step(loss_of(ids, labels))
            if self.done % recipe.save == 0 or self.done == last:
                self._save()
            if self.done % recipe.report == 0 or self.done == recipe.steps:
                minutes = (time.monotonic() - began) / 60
                print(f"step {self.done:5d}/{recipe.steps}  loss {loss:.3f}  {report()}  "
                      f"{minutes:.1f} min for {self.done - first}", flush=True)  # fmt: skip

    def _step(self, loss: torch.Tensor) -> float:
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._schedule.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.done += 1
        return loss.item()

    def _make_schedule(self) -> torch.optim.lr_scheduler.LRScheduler:
        recipe = self._recipe
        if recipe.schedule == "trapezoid":
            return _SCHEDULER.LambdaLR(self._optimizer, recipe.rate)
        return _SCHEDULER.OneCycleLR(
            self._optimizer,
            max_lr=recipe.lr,
            total_steps=recipe.steps,
            pct_start=0.08,
            anneal_strategy="cos",
        )

    def _save(self) -> None:
        """Whole or not at all: an interruption while writing leaves the state before."""
        state = {
            "recipe": self._recipe.decisive(),
            "done": self.done,
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "schedule": self._schedule.state_dict(),
        }
        self._checkpoint.parent.mkdir(parents=True, exist_ok=True)
        written = self._checkpoint.with_suffix(".new")
        torch.save(state, written)
        written.replace(self._checkpoint)

    def _resume(self) -> None:
        state = torch.load(self._checkpoint, weights_only=True)
        wanted = self._recipe.decisive()
        if state["recipe"] != wanted:
            raise ValueError(
                f"{self._checkpoint} was begun with {state['recipe']}, not {wanted}. "
                "Give the same settings or remove the file."
            )
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])
        self.done = state["done"]
        print(f"continuing {self._checkpoint} after step {self.done}", flush=True)
