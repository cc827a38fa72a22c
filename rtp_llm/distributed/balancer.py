# SPDX-License-Identifier: Apache-2.0
"""Keeps the ranks' share of expert work even: counts, plans, moves, swaps."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rtp_llm.distributed.expert_load import ExpertLoad, LoadWindow
from rtp_llm.distributed.layer_choice import LayerChoice
from rtp_llm.distributed.placement import ExpertMap, Placement
from rtp_llm.distributed.planner import improved
from rtp_llm.distributed.weight_move import LayerMove, WeightMove

if TYPE_CHECKING:
    from rtp_llm.device import Device
    from rtp_llm.distributed.world import World

_logger = logging.getLogger("rtp_llm.engine")


@dataclass(frozen=True)
class BalanceOptions:
    """`mode`: none, stats (the expert load is logged), eplb (experts are moved) or all (both).

    Every `update_steps` steps the counts are read, and `layers_per_step` layers, chosen by
    `policy`, get a new plan for the sum of the last `window` counts.
    """

    mode: str = "none"
    update_steps: int = 5000
    layers_per_step: int = 1
    policy: str = "mix"
    window: int = 10

    @property
    def counts(self) -> bool:
        """Whether choices of experts are counted."""
        return self.mode != "none"

    @property
    def moves(self) -> bool:
        """Whether experts are moved between ranks."""
        return self.mode in ("eplb", "all")

    @property
    def logs(self) -> bool:
        """Whether the expert load is logged."""
        return self.mode in ("stats", "all")


@dataclass
class BalancedLayer:
    """A layer's experts: their placement, the map of it on the device, and their weights."""

    placement: Placement
    map: ExpertMap
    weights: tuple[Tensor, ...] = ()


class Balancer:
    """One rank's part; every rank calls the same methods in the same steps.

    `before_step` once the ranks agreed that all are ready, `after_step` after every step.
    """

    def __init__(
        self,
        world: World,
        device: Device,
        layers: Sequence[BalancedLayer],
        loads: ExpertLoad,
        options: BalanceOptions,
    ) -> None:
        self.swaps = 0
        self._world, self._device = world, device
        self._layers, self._loads, self._options = layers, loads, options
        self._choice = LayerChoice(options.policy, len(layers), options.layers_per_step)
        self._window = LoadWindow(options.window)
        self._steps = 0
        self._move: WeightMove | None = None

    @property
    def ready(self) -> bool:
        """Whether no weights are in transit to or from this rank. Raises if a move has failed."""
        return self._move is None or self._move.ready

    def before_step(self, all_ready: bool) -> None:
        """Swap the weights that were moved, on all ranks in the same step or on none."""
        if self._move is None or not all_ready:
            return
        move, self._move = self._move, None
        move.put_in_place()
        # Fetched weights are in memory of another stream, which may reuse it once it is freed.
        self._device.synchronize()
        for each in move.moves:
            self._layers[each.layer].placement = each.new
            self._layers[each.layer].map.load(each.new)
        self.swaps += 1
        if self._options.logs and self._world.rank == 0:
            layers = ", ".join(str(each.layer) for each in move.moves)
            _logger.info("experts moved between ranks in layers %s", layers)

    def after_step(self) -> None:
        """Count a step; when it is time, read the counts, plan and begin to move."""
        self._steps += 1
        if self._options.counts and self._steps % self._options.update_steps == 0:
            self._update()

    def _update(self) -> None:
        counts = self._loads.take()
        self._world.host.sum(counts)
        self._window.add(counts)
        total = self._window.total()
        if self._options.logs and self._world.rank == 0:
            self._log(total)
        # One move at a time; while one is slow, counts go on.
        if self._options.moves and self._move is None:
            self._begin(self._planned(total))

    def _log(self, total: Tensor) -> None:
        shares = self._imbalances(total)
        _logger.info(
            "experts after %d steps: the busiest rank has %.2f times the mean, %.2f in layer %d",
            self._steps,
            sum(shares) / len(shares),
            max(shares),
            shares.index(max(shares)),
        )

    def _imbalances(self, total: Tensor) -> list[float]:
        pairs = zip(self._layers, total.tolist(), strict=True)
        return [layer.placement.imbalance(counts) for layer, counts in pairs]

    def _planned(self, total: Tensor) -> Tensor:
        """Rank 0's plan on every rank, int64 [layers, 1 + physical]; a leading 0: unchanged."""
        physical = len(self._layers[0].placement.experts)
        plan = torch.zeros(len(self._layers), 1 + physical, dtype=torch.int64)
        if self._world.rank == 0:
            for layer in self._choice.next(self._imbalances(total)):
                new = improved(self._layers[layer].placement, total[layer].tolist())
                if new is not None:
                    plan[layer] = torch.tensor([1, *new.experts])
        self._world.host.broadcast(plan)
        return plan

    def _begin(self, plan: Tensor) -> None:
        moves = []
        for number, (changes, *experts) in enumerate(plan.tolist()):
            if changes:
                layer = self._layers[number]
                old = layer.placement
                new = Placement(tuple(experts), old.num_logical, old.num_ranks)
                moves.append(LayerMove(number, layer.weights, old, new))
        if moves:
            self._move = WeightMove(self._world.moves, self._device, moves)
            self._move.start()
