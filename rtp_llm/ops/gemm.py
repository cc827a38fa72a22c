"""Linear layers: float weights as checkpoints hold them, and int8 weights packed at load time."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.registry import operator

_LINEAR = operator("linear")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias; sums are float32 and rounded once.

    x [T, K] of any float dtype (the row stride is free); weight [O, K] and bias [O] of the same
    dtype. Returns [T, O], contiguous. On the CPU a row of x gives the same bits in every batch.
    RuntimeError on a mismatch.
    """
    return _LINEAR.call(x, weight, bias)  # type: ignore[no-any-return]
