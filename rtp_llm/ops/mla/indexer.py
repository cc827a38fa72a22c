# SPDX-License-Identifier: Apache-2.0
"""The lightning indexer of DeepSeek sparse attention: which cached tokens a query attends to.

A token has n index queries and one index key of D elements. The logit of a key is sum over heads of
weight * relu(query . key); attention sees the `top_k` keys with the largest logits. See the report
on DeepSeek-V3.2-Exp (https://github.com/deepseek-ai/DeepSeek-V3.2-Exp).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rtp_llm.ops.declare import IndexTensor, MutableTensor, operator


@operator(optional=True)
def indexer_rotate_and_store(
    q: MutableTensor,
    k: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: float,
    cos_sin: Tensor,
    positions: IndexTensor,
    cache: MutableTensor,
    slots: IndexTensor,
    is_neox: bool = True,
) -> None:
    """Rotate index queries q [T, n, D] in place, and store the normed and rotated keys of k.

    Token and head strides of q are free, as is the row stride of k [T, D]. Keys get a layer norm
    with norm_weight and norm_bias [D]. The first P elements of queries and keys are rotated:
    cos_sin float32 [positions, P], positions int32 [T]; pairs are half a rotation apart, or
    neighbours without is_neox. slots int32 [T]: block * S + place in cache [N, S, D], -1 = not
    stored. RuntimeError on a mismatch; on the CPU IndexError for a position or slot out of range.
    """


@operator(optional=True)
def paged_mqa_logits(
    q: Tensor,
    weights: Tensor,
    cache: Tensor,
    sequences: IndexTensor,
    visible: IndexTensor,
    block_table: Tensor,
    width: int,
) -> Tensor:
    """The logits float32 [T, width] of cached keys, sum over heads of weights * relu(q . key).

    q [T, n, D] as `indexer_rotate_and_store` leaves it, weights [T, n] with a free row stride,
    cache [N, S, D], all of one dtype. Token t sees the first visible[t] <= width keys of sequence
    sequences[t] of the B in block_table int32 [B, M]; B = of none, so that it sees none. Logits of
    keys that it does not see are -inf. RuntimeError on a mismatch; on the CPU IndexError for a
    sequence, length or block out of range.
    """
    return q.new_empty((len(q), width), dtype=torch.float32)


@operator(optional=True)
def top_k_slots(
    logits: Tensor,
    sequences: IndexTensor,
    visible: IndexTensor,
    block_table: Tensor,
    num_blocks: int,
    block_size: int,
    top_k: int,
) -> tuple[Tensor, Tensor]:
    """Where the keys with the largest logits are cached: slots int32 [T, top_k], counts [T].

    logits float32 [T, C], sequences, visible and block_table as for `paged_mqa_logits`; the table
    may be that of another cache of the same sequences, with num_blocks blocks of block_size tokens.
    Row t has the counts[t] = min(visible[t], top_k) slots, block * block_size + place, in the order
    of the keys, then -1. Of equal logits those of earlier keys are taken first. RuntimeError on a
    mismatch; on the CPU IndexError for a sequence, length or block out of range.
    """
    slots = sequences.new_empty((len(logits), top_k))
    return slots, sequences.new_empty(len(logits))
