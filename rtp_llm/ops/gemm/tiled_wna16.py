# SPDX-License-Identifier: Apache-2.0
"""Linear layers with integer weights in groups, packed in tiles for a GPU's tensor cores.

Weights become 16-bit floats in registers; x is not rounded. A device may lack these operators
(ops.has_kernel). weight, scale and zero are as rtp_llm.ops.gemm.tiled_wna16_layout.pack makes them
of a weight [O, K] with `bits` 4, 5, 6 or 8, K a multiple of 128 and O of 16 (32 with an
activation). 5 and 6 bits, and zero points that are floats, take x in bfloat16.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.declare import IndexTensor, MutableTensor, operator


@operator(optional=True)
def tiled_wna16_linear(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    bits: int,
    bias: Tensor | None = None,
    activation: str = "none",
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
    norm_offset: float = 0.0,
) -> Tensor:
    """rms_norm(x) @ weight.T + bias, with a norm_weight, or x @ weight.T + bias.

    x [T, K] bfloat16 or float16 (the row stride is free, in multiples of 16 bytes); bias [O] and
    norm_weight [K] of its dtype. With an `activation` ("silu", "gelu", "gelu_tanh") the first half
    of each row, activated, times the second: [T, O / 2]. Returns [T, O] otherwise, contiguous.
    Sums are float32 and rounded once. RuntimeError on a mismatch.
    """
    outputs = scale.shape[1] if activation == "none" else scale.shape[1] // 2
    return x.new_empty((x.shape[0], outputs))


@operator(optional=True)
def tiled_wna16_add(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    bits: int,
    bias: Tensor | None,
    residual: MutableTensor,
) -> None:
    """In place: residual += x @ weight.T + bias, summed in float32 and rounded once.

    residual [T, O] of x's dtype (the row stride is free); it must not overlap x. Otherwise as
    tiled_wna16_linear.
    """


@operator(optional=True)
def tiled_wna16_float(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    bits: int,
    bias: Tensor | None = None,
) -> Tensor:
    """x @ weight.T + bias in float32 [T, O]; otherwise as tiled_wna16_linear."""
    return x.new_empty((x.shape[0], scale.shape[1]), dtype=torch.float32)


@operator(optional=True)
def tiled_wna16_embedding(
    ids: IndexTensor,
    weight: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    bits: int,
    out: MutableTensor,
) -> None:
    """Writes the rows weight[ids] to out [T, K], bfloat16 or float16; ids int32 [T].

    The weight is one that tiled_wna16_linear takes. RuntimeError on a mismatch.
    """
