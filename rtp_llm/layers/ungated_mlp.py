# SPDX-License-Identifier: Apache-2.0
"""The feed-forward layer without a gate, as a layer that mixes no tokens and caches nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from rtp_llm.attention import Backend, BackendOptions, CacheDtypes, ForwardBatch
from rtp_llm.distributed.tensor_parallel import TensorParallel
from rtp_llm.layers.linear.factory import make_linear
from rtp_llm.layers.mixer import Mixer
from rtp_llm.layers.norm import RMSNorm
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.shard import Shard
from rtp_llm.layers.weights.shard_targets import LinearShards


@dataclass(frozen=True)
class UngatedMLPShape:
    """A feed-forward layer in the place of a mixer; `intermediate_size` is that of all ranks."""

    hidden_size: int
    intermediate_size: int
    bias: bool = False

    checkpoint_name: ClassVar[str] = "mixer"

    def on_rank(self, ranks: TensorParallel) -> UngatedMLPShape:
        return self

    def cache_spec(self, dtypes: CacheDtypes) -> None:
        return None

    def backend_config(self, options: BackendOptions) -> None:
        return None

    def make(self, index: int, backend: Backend[Any] | None, options: LayerOptions) -> UngatedMLP:
        return UngatedMLP(self, options)


class UngatedMLP(Mixer):
    """down(relu(up(x))^2); tensor-parallel ranks divide the channels and return partial sums."""

    def __init__(self, shape: UngatedMLPShape, options: LayerOptions) -> None:
        super().__init__()
        hidden, bias = shape.hidden_size, shape.bias
        shard = Shard.even(shape.intermediate_size, options.tensor_parallel, "intermediate_size")
        rows, columns = LinearShards({"up_proj": shard}), LinearShards(columns=shard)
        self.up_proj = make_linear(hidden, {"up_proj": shard.size}, bias, options, shards=rows)
        down = {"down_proj": hidden}
        self.down_proj = make_linear(shard.size, down, bias, options, shards=columns)

    def cache_spec(self) -> None:
        return None

    def forward(
        self,
        norm: RMSNorm,
        residual: Tensor,
        pending: Tensor | None,
        cos_sin: Tensor | None,
        batch: ForwardBatch,
    ) -> Tensor | None:
        """Apply the layer to norm(residual + pending) [T, hidden]; see Linear.normed and add_to."""
        up = self.up_proj.normed(norm, residual, pending)
        return self.down_proj.add_to(residual, up.relu_().square_())
