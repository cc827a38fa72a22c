# SPDX-License-Identifier: Apache-2.0
"""The gated delta rule over prompts in Triton."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.declare import MutableTensor, operator

_KEY_SIZE = 128


def takes_chunks(qkv: Tensor, state: Tensor) -> bool:
    """Whether the kernels are correct for these tensors: keys of up to 128 elements in float32.

    With 16-bit types: keys of 128 in rows at multiples of 16 elements, and values in multiples of
    32. Where Triton 3.6 cannot load the operands of Hopper's products ahead, results are wrong.
    """
    values, keys = state.shape[-2:]
    if qkv.dtype is torch.float32:
        return keys <= _KEY_SIZE
    aligned = qkv.stride(0) % 16 == 0 and qkv.data_ptr() % 16 == 0
    return aligned and keys == _KEY_SIZE and values % 32 == 0


@operator(triton="linear_attention.gated_delta_rule:gated_delta_chunks")
def triton_gated_delta_chunks(
    qkv: Tensor,
    ba: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: MutableTensor,
    ring_k: Tensor,
    ring_u: Tensor,
    ring_g: Tensor,
    folded: MutableTensor,
    out: MutableTensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    state_read: Tensor,
    state_write: Tensor,
) -> None:
    """`gated_delta_rule` for chunks of more than R / 2 tokens, into `out`, without synchronisation.

    Rows and blocks of other chunks are not modified. The tensors are those that gated_delta_rule
    has accepted. Results are wrong where `takes_chunks` returns False.
    """
