# SPDX-License-Identifier: Apache-2.0
"""RMS normalisation."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from rtp_llm import ops
from rtp_llm.layers.layer import Layer
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.targets import RowsTarget, WeightTarget


class RMSNorm(Layer):
    """(weight + offset) * x / rms(x) over the last axis, computed in float32.

    `offset` is 1 if the checkpoint stores w for a weight of 1 + w (Gemma, Qwen3-Next). It is added
    in float32, since rounding the sum to 16 bits would change the weight.
    """

    def __init__(self, size: int, eps: float, options: LayerOptions, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = options.parameter(size)
        self.eps, self.offset = eps, offset

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, self.eps, self.offset)

    def add(self, x: Tensor, residual: Tensor) -> None:
        """In place: residual += x, then x = norm(residual)."""
        ops.fused_add_rms_norm(x, residual, self.weight, self.eps, self.offset)

    def after(self, pending: Tensor | None, residual: Tensor) -> Tensor:
        """Add `pending` (None: nothing) to `residual` in place, then return the norm of the sum.

        The memory of `pending` may be reused for the result.
        """
        if pending is None:
            return self.forward(residual)
        self.add(pending, residual)
        return pending

    def after_as_fp8(self, pending: Tensor | None, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Like `after`, but returns a two-dimensional FP8 result as rtp_llm.ops.norm_fp8 does."""
        return ops.norm_fp8(residual, pending, self.weight, self.eps, self.offset)

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        yield f"{path}weight", RowsTarget(self.weight)


class SummingNorm(RMSNorm):
    """A norm that first sums the ranks' partial results and adds them to the residual."""

    def __init__(self, size: int, eps: float, options: LayerOptions, offset: float = 0.0) -> None:
        super().__init__(size, eps, options, offset)
        self._ranks = options.tensor_parallel

    def after(self, pending: Tensor | None, residual: Tensor) -> Tensor:
        """Sum the ranks' partial results `pending`, add the sum to `residual`, and normalise.

        A single operator may do all three.
        """
        if pending is None:
            return self.forward(residual)
        return self._ranks.add_rms_norm(pending, residual, self.weight, self.eps, self.offset)

    def after_as_fp8(self, pending: Tensor | None, residual: Tensor) -> tuple[Tensor, Tensor]:
        """As `after`, with the norm as FP8: see rtp_llm.ops.norm_fp8."""
        if pending is None:
            return super().after_as_fp8(None, residual)
        return self._ranks.add_rms_norm_fp8(pending, residual, self.weight, self.eps, self.offset)


def residual_norm(size: int, eps: float, options: LayerOptions, offset: float = 0.0) -> RMSNorm:
    """Create the norm of a residual that first adds pending results of layers."""
    kind = RMSNorm if options.tensor_parallel.size == 1 else SummingNorm
    return kind(size, eps, options, offset)
