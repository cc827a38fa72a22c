# SPDX-License-Identifier: Apache-2.0
"""Executors that sort the rows by expert, and multiply them in two grouped products."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

from torch import Tensor

from rtp_llm import ops
from rtp_llm.layers.activation import GatedActivation
from rtp_llm.layers.moe.dispatcher import Dispatched
from rtp_llm.layers.moe.executor import Executor, ExpertContext, ExpertWeights
from rtp_llm.layers.weights.stacked import StackedLinearWeights

Product = Literal["gate_up", "down"]
PRODUCTS: tuple[Product, Product] = ("gate_up", "down")


class GroupedExecutor(Executor):
    """Everything but the products themselves, which depend on how weights are stored."""

    def __init__(self, context: ExpertContext, weights: ExpertWeights) -> None:
        super().__init__(context, weights)
        config = context.config
        self._activation = GatedActivation(config.activation, config.alpha, config.limit)

    def execute(self, dispatched: Dispatched) -> Tensor:
        rows, places, offsets = ops.sort_by_expert(dispatched.ids, self.context.slots)
        x = ops.embedding(rows // dispatched.ids.shape[1], dispatched.x)
        gated = self._activation(self._product("gate_up", x, offsets))
        y = self._product("down", gated, offsets)
        return ops.sum_experts(y, places, dispatched.weights)

    def _layer(self, name: Product) -> StackedLinearWeights:
        return self.weights.gate_up if name == "gate_up" else self.weights.down

    @abstractmethod
    def _product(self, name: Product, x: Tensor, offsets: Tensor) -> Tensor:
        """x [R, K]; rows offsets[e] to offsets[e + 1] belong to expert e -> [R, N]."""
