# SPDX-License-Identifier: Apache-2.0
"""The interface of executors, which compute the experts of this process."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.device import Capabilities, Support
from rtp_llm.layers.moe.config import MoeConfig
from rtp_llm.layers.moe.dispatcher import Dispatched
from rtp_llm.layers.weights.stacked import StackedLinearWeights


@dataclass(frozen=True)
class ExpertContext:
    """The context from which an executor is chosen.

    `capabilities` are the device's, `dtype` is the dtype of the activations, `weights` is "plain"
    (in that dtype), "fp8" (e4m3 with scales of 128x128 blocks), "fp8_channel" (with scales of
    output channels), "mxfp4" (blocks of 32 with e8m0 scales), "int_groups", "int8_channel",
    "table4" (4-bit codes), "gguf" or the name of a quantisation; `dispatcher` is the name of the
    dispatcher, and `slots` the number of local experts.
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


def missing_kernels(context: ExpertContext, names: Sequence[str]) -> str:
    """The operators of `names` without a kernel on the context's device, joined by commas."""
    device = context.capabilities.torch_type
    return ", ".join(name for name in names if not ops.has_kernel(name, device))


def has_kernels(context: ExpertContext, names: Sequence[str]) -> Support:
    """Whether the context's device has kernels of all operators of `names`."""
    if missing := missing_kernels(context, names):
        return Support.no(f"no kernel of {missing} on {context.capabilities}")
    return Support.yes()


@dataclass(frozen=True)
class ExpertWeights:
    """Weights by slot: gate_up [slots, 2 I, hidden] (gate rows first), down [slots, hidden, I]."""

    gate_up: StackedLinearWeights
    down: StackedLinearWeights


class Executor:
    """down(act(gate(x)) * up(x)) by each token's experts, and the weighted sum of the results.

    Of the executors that support a context, the one with the highest `priority` is chosen. The
    number of operator calls does not depend on the batch, and none of them waits, so that graphs
    can capture them.
    """

    name: ClassVar[str]
    priority: ClassVar[int]

    def __init__(self, context: ExpertContext, weights: ExpertWeights) -> None:
        self.context, self.weights = context, weights

    @classmethod
    @abstractmethod
    def supports(cls, context: ExpertContext) -> Support:
        """Whether the executor supports `context`, or why not."""

    @abstractmethod
    def execute(self, dispatched: Dispatched) -> Tensor:
        """The weighted sums of the local experts: [T', hidden] in x's dtype; T' is at least 1."""

    def finish_loading(self) -> None:
        """Called once all weights are loaded, to bring them into the order of the kernels."""

    def warm_up(self) -> None:
        """Compile kernels that would otherwise compile on first use; weights are loaded."""
