# SPDX-License-Identifier: Apache-2.0
"""Layer normalisation."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from rtp_llm import ops
from rtp_llm.layers.layer import Layer
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.targets import RowsTarget, WeightTarget


class LayerNorm(Layer):
    """(x - mean(x)) / std(x) * weight + bias over the last axis, computed in float32."""

    bias: nn.Parameter | None

    def __init__(self, size: int, eps: float, options: LayerOptions, bias: bool = True) -> None:
        super().__init__()
        self.weight = options.parameter(size)
        self.bias = options.parameter(size) if bias else None
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return ops.layer_norm(x, self.weight, self.bias, self.eps)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """In place: residual += x, then x = norm(residual). Returns x."""
        ops.fused_add_layer_norm(x, residual, self.weight, self.bias, self.eps)
        return x

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        yield f"{path}weight", RowsTarget(self.weight)
        if self.bias is not None:
            yield f"{path}bias", RowsTarget(self.bias)


class SummingLayerNorm(LayerNorm):
    """A norm that first sums the ranks' partial results and adds them to the residual."""

    def __init__(self, size: int, eps: float, options: LayerOptions, bias: bool = True) -> None:
        super().__init__(size, eps, options, bias)
        self._ranks = options.tensor_parallel

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """In place: residual += the sum of the ranks' x, then x = norm(residual). Returns x."""
        return super().add(self._ranks.all_reduce(x), residual)


def residual_layer_norm(
    size: int, eps: float, options: LayerOptions, bias: bool = True
) -> LayerNorm:
    """Create the norm of a residual that first adds pending results of layers."""
    kind = LayerNorm if options.tensor_parallel.size == 1 else SummingLayerNorm
    return kind(size, eps, options, bias)
