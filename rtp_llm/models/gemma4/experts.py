# SPDX-License-Identifier: Apache-2.0
"""The mixture of experts that Gemma 4 has next to a dense MLP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from rtp_llm.layers import LayerOptions, MoeBlock, MoeConfig, RMSNorm, WeightTarget
from rtp_llm.layers.moe.gate import Gate
from rtp_llm.layers.weights.targets import RowsTarget


class NormedGate(Gate):
    """A router with a norm of its input, whose weights are scaled by a factor of each expert."""

    def __init__(self, config: MoeConfig, options: LayerOptions) -> None:
        super().__init__(config, options.inside("router"), "proj")
        self.norm = RMSNorm(config.hidden_size, config.router_eps, options)
        self.expert_scale = options.parameter(config.num_experts, dtype=torch.float32)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        ids, weights = super().forward(x)
        return ids, weights.mul_(self.expert_scale[ids])

    def logits(self, x: Tensor) -> Tensor:
        return super().logits(self.norm(x)).mul_(self.config.hidden_size**-0.5)

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        yield from super().checkpoint_targets(f"{path}proj.")
        yield f"{path}scale", RowsTarget(self.norm.weight)
        yield f"{path}per_expert_scale", RowsTarget(self.expert_scale)


class SideBySideExperts(MoeBlock):
    """Experts that are added to the layer's dense MLP; the router reads the residual itself.

    It is the decoder layer's `moe`, and its parts are the layer's own in checkpoints.
    """

    GATE: ClassVar[type[Gate]] = NormedGate

    def beside(self, norm: RMSNorm, residual: Tensor) -> Tensor:
        """The experts' output [T, hidden] for norm(residual), chosen for `residual`.

        On tensor-parallel ranks it is a partial sum.
        """
        ids, weights = self.gate(residual)
        for step in self.steps:
            step(ids, weights)
        return self.route(norm(residual), ids, weights)

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        yield from super().checkpoint_targets(path.removesuffix("moe."))
