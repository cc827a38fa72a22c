"""Linear layers of few rows with what surrounds them: norms before, activations and sums behind.

A device may lack these operators. Where it has them they take at most MAX_ROWS rows, and the
weights for which takes() is true; other calls are RuntimeErrors.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.registry import has_kernel, operator

MAX_ROWS = 16
_COLUMNS, _ROWS = 64, 16  # what a weight's columns and rows are multiples of

_LINEAR_ADD = operator("linear_add")
_NORM_LINEAR = operator("norm_linear")
_NORM_GATED_LINEAR = operator("norm_gated_linear")
_LINEAR_FLOAT = operator("linear_float")


def takes(rows: int, columns: int, dtype: torch.dtype, device_type: str) -> bool:
    """Whether there are these operators on a device for a weight [rows, columns] of `dtype`."""
    if rows % _ROWS or columns % _COLUMNS or dtype not in (torch.bfloat16, torch.float16):
        return False
    own = (_LINEAR_ADD, _NORM_LINEAR, _NORM_GATED_LINEAR, _LINEAR_FLOAT)
    return all(has_kernel(each.name, device_type) for each in own)


def linear_add(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor) -> None:
    """In place: residual += x @ weight.T + bias, summed in float32 and rounded once.

    x [T, K], residual [T, O] (the row strides are free), weight [O, K], bias [O]; one dtype,
    bfloat16 or float16. x and residual are different memory.
    """
    _LINEAR_ADD.call(x, weight, bias, residual)


def norm_linear(
    x: Tensor, norm_weight: Tensor, eps: float, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """rms_norm(x, norm_weight, eps) @ weight.T + bias; what is multiplied is rounded as x is.

    x [T, K] (the row stride is free), norm_weight [K], weight [O, K], bias [O]; one dtype, bfloat16
    or float16. Returns [T, O], contiguous.
    """
    return _NORM_LINEAR.call(x, norm_weight, eps, weight, bias)  # type: ignore[no-any-return]


def norm_gated_linear(
    x: Tensor, norm_weight: Tensor, eps: float, weight: Tensor, bias: Tensor | None, activation: str
) -> Tensor:
    """activation(first half) * second half of each row of norm_linear, which is not rounded itself.

    `activation` is "silu", "gelu" or "gelu_tanh". Returns [T, O / 2], contiguous.
    """
    gated = _NORM_GATED_LINEAR.call(x, norm_weight, eps, weight, bias, activation)
    return gated  # type: ignore[no-any-return]


def linear_float(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight.T in float32, as it was summed: [T, O], contiguous.

    x [T, K] (the row stride is free) and weight [O, K] of one dtype, bfloat16 or float16.
    """
    return _LINEAR_FLOAT.call(x, weight)  # type: ignore[no-any-return]
