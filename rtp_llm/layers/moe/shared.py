# SPDX-License-Identifier: Apache-2.0
"""Shared experts, which process every token."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from rtp_llm import ops
from rtp_llm.layers.activation import GatedActivation
from rtp_llm.layers.layer import Layer
from rtp_llm.layers.linear.factory import make_float_product, make_linear
from rtp_llm.layers.moe.config import MoeConfig
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.shard import Shard
from rtp_llm.layers.weights.shard_targets import LinearShards
from rtp_llm.layers.weights.targets import RowsTarget, WeightTarget, weight_targets


class SharedExperts(Layer):
    """One gated layer as wide as all shared experts, optionally gated by a sigmoid.

    Its channels are sharded over tensor-parallel ranks, which add partial sums.
    """

    gate: nn.Parameter | None

    def __init__(self, config: MoeConfig, options: LayerOptions) -> None:
        super().__init__()
        hidden, names = config.hidden_size, config.names
        width = config.shared_intermediate_size
        inside = options.inside(names.shared)
        shard = Shard.even(width, options.tensor_parallel, "the size of the shared experts")
        parts = {names.gate_proj: shard.size, names.up_proj: shard.size}
        rows, columns = LinearShards(dict.fromkeys(parts, shard)), LinearShards(columns=shard)
        self.names = names
        self.gate_up_proj = make_linear(hidden, parts, False, inside, shards=rows)
        down = {names.down_proj: hidden}
        self.down_proj = make_linear(shard.size, down, False, inside, shards=columns)
        self.activation = GatedActivation(config.activation)
        self.gate = options.parameter(1, hidden) if config.shared_gate else None
        self._product = make_float_product(self.gate) if self.gate is not None else None
        self._fused = ops.has_kernel("add_sigmoid_gated", options.device.type)

    def add_to(self, out: Tensor, x: Tensor) -> Tensor:
        """Add the layer's output for x to `out` in place, both [T, hidden]; returns `out`."""
        y: Tensor = self.down_proj(self.activation(self.gate_up_proj(x)))
        if self._product is None or self.gate is None:
            return out.add_(y)
        if self._fused:
            ops.add_sigmoid_gated(out, y, x, self.gate)
            return out
        weight = self._product(x, self.gate).sigmoid_()
        return out.addcmul_(y, weight)

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        """Targets of the shared experts' weights; `path` is the path of the block."""
        inside = f"{path}{self.names.shared}."
        yield from weight_targets(self.gate_up_proj, f"{inside}gate_up_proj.")
        yield from weight_targets(self.down_proj, f"{inside}down_proj.")
        if self.gate is not None:
            yield f"{path}{self.names.shared_gate}.weight", RowsTarget(self.gate)
