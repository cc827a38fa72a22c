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

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        yield f"{path}weight", RowsTarget(self.weight)
