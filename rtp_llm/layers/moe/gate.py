# SPDX-License-Identifier: Apache-2.0
"""Which experts a token goes to, and with what weights."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from rtp_llm import ops
from rtp_llm.layers.layer import Layer
from rtp_llm.layers.linear.factory import make_float_product
from rtp_llm.layers.moe.config import MoeConfig
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.targets import RowsTarget, WeightTarget

_NAME = "gate"


class Gate(Layer):
    """Router logits and expert selection; weights are floats, logits are float32."""

    bias: nn.Parameter | None
    logit_bias: nn.Parameter | None

    def __init__(self, config: MoeConfig, options: LayerOptions, name: str = _NAME) -> None:
        """`name`: that of the module with the weight in the checkpoint."""
        super().__init__()
        self.config = config
        self.weight = options.parameter(config.num_experts, config.hidden_size)
        self.bias = None
        if config.correction_bias:
            self.bias = options.parameter(config.num_experts, dtype=torch.float32)
        self.logit_bias = None
        if config.router_bias:
            self.logit_bias = options.parameter(config.num_experts, dtype=torch.float32)
        self._product = make_float_product(self.weight)
        self._stored = options.format_of(name)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [T, hidden] -> experts int32 [T, k], best first, and weights float32 [T, k]."""
        config, logits = self.config, self.logits(x)
        ids = logits.new_empty(x.shape[0], config.top_k, dtype=torch.int32)
        weights = logits.new_empty(x.shape[0], config.top_k)
        if config.plain_softmax:
            ops.select_topk(logits, ids, weights, config.renormalize)
            return ids, weights
        ops.group_topk(
            logits,
            self.bias,
            ids,
            weights,
            scoring=config.scoring,
            num_groups=config.num_groups,
            top_groups=config.top_groups,
            group_best=config.group_best,
            renormalize=config.renormalize,
            scaling=config.scaling,
        )
        return ids, weights

    def logits(self, x: Tensor) -> Tensor:
        """x [T, hidden] -> float32 [T, experts]; the row stride is free."""
        logits = self._product(x, self.weight)
        return logits if self.logit_bias is None else logits.add_(self.logit_bias)

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        for suffix, target in self._stored.float_targets(self.weight.detach()):
            yield f"{path}{suffix}", target
        if self.bias is not None:
            names = self.config.names
            place = f"{path}e_score_correction_bias"
            if names.choice_bias:
                place = path.removesuffix(f"{names.gate}.") + names.choice_bias
            axes = (1,) * (names.choice_bias_axes - 1)
            yield place, RowsTarget(self.bias.detach().view(*axes, -1))
        if self.logit_bias is not None:
            yield f"{path}bias", RowsTarget(self.logit_bias)
