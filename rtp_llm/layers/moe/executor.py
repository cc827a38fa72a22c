# SPDX-License-Identifier: Apache-2.0
"""What computes the experts of this process."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rtp_llm.device import Capabilities, Support
from rtp_llm.layers.moe.config import MoeConfig
from rtp_llm.layers.moe.dispatcher import Dispatched
from rtp_llm.layers.stacked_weights import StackedLinearWeights


@dataclass(frozen=True)
class ExpertContext:
    """What an executor is chosen for.

    `capabilities` are the device's, `dtype` is that of the activations, `weights` "plain" (that
    dtype), "fp8" (e4m3 with scales of 128x128 tiles) or another form; `dispatcher` its name,
    `slots` the experts kept here.
    """

    config: MoeConfig
    capabilities: Capabilities
    dtype: torch.dtype
    weights: str
    dispatcher: str
    slots: int

    def describe(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"{self.capabilities}, {dtype}, {self.weights} weights, {self.dispatcher} dispatcher, "
            f"{self.slots} experts of {self.config.intermediate_size}"
        )


@dataclass(frozen=True)
class ExpertWeights:
    """Weights by slot: gate_up [slots, 2 I, hidden] (gate rows first), down [slots, hidden, I]."""

    gate_up: StackedLinearWeights
    down: StackedLinearWeights


class Executor:
    """act(gate(x)) * up(x), then down, by each token's experts, and their weighted sum.

    `priority`: among executors that support a context the highest is taken. Calls are as many as
    for any other batch and wait for nothing, so that graphs capture them.
    """

    name: ClassVar[str]
    priority: ClassVar[int]

    def __init__(self, context: ExpertContext, weights: ExpertWeights) -> None:
        self.context, self.weights = context, weights

    @classmethod
    @abstractmethod
    def supports(cls, context: ExpertContext) -> Support:
        """Whether it can compute that, or why not."""

    @abstractmethod
    def execute(self, dispatched: Dispatched) -> Tensor:
        """The weighted sums of the experts here: [T', hidden] in x's dtype; T' is at least 1."""

    def warm_up(self) -> None:
        """Compile what is compiled at the first call. The weights are there."""
