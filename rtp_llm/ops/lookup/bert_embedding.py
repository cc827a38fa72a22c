# SPDX-License-Identifier: Apache-2.0
"""The embeddings of encoders: words, positions and token types in one kernel."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import IndexTensor, operator


@operator
def bert_embedding(
    input_ids: IndexTensor,
    position_ids: IndexTensor | None,
    token_type_ids: IndexTensor | None,
    word_embeddings: Tensor,
    position_embeddings: Tensor | None,
    token_type_embeddings: Tensor | None,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    eps: float = 1e-12,
) -> Tensor:
    """word_embeddings[input_ids] + position_embeddings[position_ids] + token_type_embeddings[...].

    Ids int32 [T]; tables [rows, C] of one float dtype, with free row strides. Without positions, or
    without token types, those two arguments are None; a table of token types without ids adds its
    first row. norm_weight [C]: the sum is normalised as by layer_norm, with or without norm_bias.
    Sums are float32 and rounded once. Returns [T, C], contiguous. RuntimeError on a mismatch. On
    the CPU an id without a row is an IndexError; elsewhere its row of the result is NaN.
    """
    return word_embeddings.new_empty((input_ids.shape[0], word_embeddings.shape[1]))
