# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch reference of the embeddings of encoders."""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.lookup.lookup_reference import embedding_reference
from rtp_llm.ops.norm.norm_reference import layer_norm_reference


def bert_embedding_reference(
    input_ids: Tensor,
    position_ids: Tensor | None,
    token_type_ids: Tensor | None,
    word_embeddings: Tensor,
    position_embeddings: Tensor | None,
    token_type_embeddings: Tensor | None,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    eps: float = 1e-12,
) -> Tensor:
    """Plain PyTorch reference of `ops.bert_embedding`: same arguments and results."""
    total = embedding_reference(input_ids, word_embeddings).float()
    if position_ids is not None and position_embeddings is not None:
        total = total + embedding_reference(position_ids, position_embeddings).float()
    if token_type_embeddings is not None:
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        total = total + embedding_reference(token_type_ids, token_type_embeddings).float()
    if norm_weight is not None:
        bias = None if norm_bias is None else norm_bias.float()
        total = layer_norm_reference(total, norm_weight.float(), bias, eps)
    return total.to(word_embeddings.dtype)
