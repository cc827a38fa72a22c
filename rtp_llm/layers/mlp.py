# SPDX-License-Identifier: Apache-2.0
"""The gated feed-forward layer."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.layers.activation import GatedActivation
from rtp_llm.layers.layer import Layer
from rtp_llm.layers.linear.factory import make_linear
from rtp_llm.layers.norm import RMSNorm
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.interleaved import Interleaved
from rtp_llm.layers.weights.shard import Shard
from rtp_llm.layers.weights.shard_targets import LinearShards


class GatedMLP(Layer):
    """down(act(gate(x)) * up(x)), with gate and up fused into one product.

    The `intermediate` channels are sharded over tensor-parallel ranks, which return partial sums.
    """

    def __init__(
        self,
        hidden: int,
        intermediate: int,
        act: str,
        bias: bool,
        options: LayerOptions,
        fused: str = "",
    ) -> None:
        """`fused`: the checkpoint's tensor that has the rows of gate and then those of up."""
        super().__init__()
        shard = Shard.even(intermediate, options.tensor_parallel, "intermediate_size")
        parts = {"gate_proj": shard.size, "up_proj": shard.size}
        rows = LinearShards(dict.fromkeys(parts, shard), concatenated=bool(fused))
        columns = LinearShards(columns=shard)
        together = [Interleaved(fused, tuple(parts), 1)] if fused else []
        self.gate_up_proj = make_linear(hidden, parts, bias, options, together, rows)
        down = {"down_proj": hidden}
        self.down_proj = make_linear(shard.size, down, bias, options, shards=columns)
        self.activation = GatedActivation(act)
        self._gate_goes_down = self.down_proj.takes_gate(self.activation)

    def forward(self, norm: RMSNorm, residual: Tensor, pending: Tensor | None) -> Tensor | None:
        """Apply the layer to norm(residual + pending) [T, hidden]; see Linear.normed and add_to."""
        if self._gate_goes_down:
            pairs = self.gate_up_proj.normed(norm, residual, pending)
            return self.down_proj.add_gated(residual, pairs, self.activation)
        gated = self.gate_up_proj.normed_gated(norm, residual, pending, self.activation)
        return self.down_proj.add_to(residual, gated)

    def alone(self, norm: RMSNorm | None, residual: Tensor, pending: Tensor | None) -> Tensor:
        """`forward` without adding anything to the residual but `pending`; `norm` None: none."""
        if norm is None:
            gated = self.activation(self.gate_up_proj.of_sum(None, residual, pending))
        else:
            gated = self.gate_up_proj.normed_gated(norm, residual, pending, self.activation)
        return self.down_proj(gated)  # type: ignore[no-any-return]
