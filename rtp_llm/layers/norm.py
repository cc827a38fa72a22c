# SPDX-License-Identifier: Apache-2.0
"""RMS normalisation."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from rtp_llm import ops
from rtp_llm.layers.layer import Layer
from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights import RowsTarget, WeightTarget


class RMSNorm(Layer):
    """(weight + offset) * x / rms(x) over the last axis, computed in float32.

    `offset` is 1 where the checkpoint holds w of 1 + w (Gemma, Qwen3-Next): added in float32, for
    the sum rounded to 16 bits would be another weight.
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
        """The norm of `residual`, to which `pending` (None: nothing) is added in place before.

        `pending` may become the result.
        """
        if pending is None:
            return self.forward(residual)
        self.add(pending, residual)
        return pending

    def after_as_fp8(self, pending: Tensor | None, residual: Tensor) -> tuple[Tensor, Tensor]:
        """The same, two-dimensional, as rtp_llm.ops.norm_fp8 gives it."""
        return ops.norm_fp8(residual, pending, self.weight, self.eps, self.offset)

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        yield f"{path}weight", RowsTarget(self.weight)


class SummingNorm(RMSNorm):
    """The norm of a residual to which each rank of several has a part of what is added to it."""

    def __init__(self, size: int, eps: float, options: LayerOptions, offset: float = 0.0) -> None:
        super().__init__(size, eps, options, offset)
        self._ranks = options.tensor_parallel

    def after(self, pending: Tensor | None, residual: Tensor) -> Tensor:
        """Here the ranks' parts `pending` become their sum, which is added, and the norm is taken:
        one operator may do all three."""
        if pending is None:
            return self.forward(residual)
        return self._ranks.add_rms_norm(pending, residual, self.weight, self.eps, self.offset)

    def after_as_fp8(self, pending: Tensor | None, residual: Tensor) -> tuple[Tensor, Tensor]:
        """See RMSNorm and `after`."""
        if pending is None:
            return super().after_as_fp8(None, residual)
        return self._ranks.add_rms_norm_fp8(pending, residual, self.weight, self.eps, self.offset)


def residual_norm(size: int, eps: float, options: LayerOptions, offset: float = 0.0) -> RMSNorm:
    """The norm of a residual, to which what the layers give is added before."""
    kind = RMSNorm if options.tensor_parallel.size == 1 else SummingNorm
    return kind(size, eps, options, offset)
