# SPDX-License-Identifier: Apache-2.0
"""Linear layers with integer weights of 4 or 8 bits in groups: GPTQ, AWQ, compressed-tensors.

See wna16_layout.py for what the weights of a device are.
"""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import IndexTensor, operator


@operator(optional=True)
def wna16_linear(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    zero: Tensor,
    outputs: int,
    bits: int,
    group: int,
    order: IndexTensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """x[:, order] @ (scale * (codes - zero)).T + bias.

    x [T, K] of any float dtype (the row stride is free); weight, scale and zero as made by
    rtp_llm.ops.gemm.wna16_layout.pack for `outputs` rows of codes of `bits` bits, of which `group`
    columns share a scale and a zero point (0: all of them); order int32 [columns]: where in x a
    column of the weight is, -1 for zeros; bias [outputs] of x's dtype. Returns [T, outputs] in x's
    dtype, contiguous. RuntimeError on a mismatch.

    Quantises each 64 columns of a row of x (32 if groups are no multiple of 64) to 8 bits:
    their largest magnitude becomes 127. Nothing else is rounded but float32 sums and the result,
    and a row gives the same bits in every batch. A row with a NaN or an infinity gives NaN.
    """
    return x.new_empty((x.shape[0], outputs))


@operator(optional=True)
def wna16_grouped_linear(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    zero: Tensor,
    offsets: IndexTensor,
    outputs: int,
    bits: int,
    group: int,
    bias: Tensor | None = None,
) -> Tensor:
    """grouped_linear with experts as in wna16_linear, plus bias[e].

    x [R, K], contiguous; weight, scale and zero have a first axis of experts; offsets int32 [E + 1]
    as in grouped_linear; bias [E, outputs]. Returns [R, outputs]; rows from offsets[E] on are
    undefined. RuntimeError on a mismatch.
    """
    return x.new_empty((x.shape[0], outputs))
