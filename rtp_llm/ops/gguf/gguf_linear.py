# SPDX-License-Identifier: Apache-2.0
"""Products and lookups with weights in the blocks of GGUF files.

`kind` is the name of a tensor type, such as Q4_K; blocks int8 [O, bytes of a row] hold bytes. The
types in INTERLEAVED go through gguf_interleave first, once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.declare import IndexTensor, MutableTensor, operator


@operator(optional=True)
def gguf_linear(
    x: Tensor,
    blocks: Tensor,
    kind: str,
    bias: Tensor | None = None,
    activation_bits: int = 8,
    float_results: bool = False,
) -> Tensor:
    """x @ dequantised(blocks).T + bias; sums are float32 and rounded once.

    x [T, K] of any float dtype (the row stride is free), K in whole blocks; blocks as
    gguf_interleave leaves them; bias [O] of x's dtype. With types in INTERLEAVED, x is quantised on
    the fly: each 32 columns of a row get a scale of their own, and the largest magnitude becomes
    127. `activation_bits`: 16 quantises what is left likewise, and adds it (few rows take little
    longer then, many twice as long; SYCL kernels keep x as it is); 32 keeps x as it is, as other
    types always do. A row with a
    NaN or an infinity gives NaN. A row of x gives the same bits in every batch. Returns [T, O] in
    x's dtype, with `float_results` in float32. RuntimeError on a mismatch.
    """
    return x.new_empty(
        (x.shape[0], blocks.shape[0]), dtype=torch.float32 if float_results else x.dtype
    )


@operator(optional=True)
def gguf_grouped_linear(
    x: Tensor,
    blocks: Tensor,
    kind: str,
    offsets: IndexTensor,
    bias: Tensor | None = None,
    activation_bits: int = 8,
) -> Tensor:
    """grouped_linear with experts as in gguf_linear, plus bias[e].

    x [R, K] (the row stride is free); blocks int8 [E, N, bytes of a row], those of an expert
    contiguous and as gguf_interleave leaves them; offsets int32 [E + 1] as in grouped_linear; bias
    [E, N] of x's dtype (the row stride is free). A row gives the same bits as in gguf_linear.
    Returns [R, N]; rows from offsets[E] on are undefined. RuntimeError on a mismatch, IndexError
    for offsets that descend or exceed R.
    """
    return x.new_empty((x.shape[0], blocks.shape[1]))


@operator(optional=True)
def gguf_interleave(blocks: MutableTensor, kind: str) -> None:
    """Interleaves each 16 rows in place; rows after the last 16 stay as they are.

    So do all rows of types that are not in INTERLEAVED (rtp_llm.ops.gguf.kinds), and those of
    devices whose kernels read blocks as they are in files.
    Not to be called twice. RuntimeError on a mismatch.
    """


@operator(optional=True)
def gguf_embedding(ids: IndexTensor, blocks: Tensor, kind: str, out: MutableTensor) -> None:
    """Writes dequantised(blocks)[ids] to out [T, K] of any float dtype; ids int32 [T].

    blocks as gguf_interleave leaves them. IndexError for an id outside of the table, RuntimeError
    on a mismatch.
    """
