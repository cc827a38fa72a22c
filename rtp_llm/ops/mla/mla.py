# SPDX-License-Identifier: Apache-2.0
"""Multi-head latent attention (https://arxiv.org/abs/2405.04434): one cached latent per token.

R is the size of the latent, P the size of the rotated key; all heads share both. The cache is [N,
S, R + P].
"""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import IndexTensor, MutableTensor, operator


@operator(optional=True)
def mla_rotate_and_store(
    q: Tensor,
    q_out: MutableTensor,
    kv: Tensor,
    norm_weight: Tensor,
    eps: float,
    cos_sin: Tensor | None,
    positions: IndexTensor,
    cache: MutableTensor,
    slots: IndexTensor,
    is_neox: bool = False,
) -> None:
    """Rotate queries q [T, H, P] into q_out, and store the normed latent and the rotated key of kv.

    q_out has q's shape and dtype and may be q; token and head strides of both are free. kv [T, R +
    P] with a free row stride: latents get an RMS norm with norm_weight [R], keys are rotated.
    cos_sin float32 [positions, P] (None: no rotation), positions int32 [T]; pairs are neighbours,
    or half a rotation apart with is_neox. slots int32 [T]: block * S + place in cache [N, S, R +
    P], -1 = not stored. RuntimeError on a mismatch; on the CPU IndexError for a position or slot
    out of range.
    """


@operator(optional=True)
def mla_attention(
    q: Tensor,
    cache: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    latent_size: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    scale: float,
) -> Tensor:
    """Causal attention over latents: softmax(scale * q c^T) times the first R elements of each c.

    q [T, H, R + P] (token and head strides are free): queries in the space of the latents, then
    their rotated part. cache [N, S, R + P] of the same dtype already holds the step's tokens;
    lengths and table are as for `paged_attention`. Returns [T, H, latent_size = R], contiguous;
    zeros for queries that see no key and for tokens past cu_seqlens_q[B]. RuntimeError on a
    mismatch.
    """
    return q.new_empty(*q.shape[:2], latent_size)


@operator(optional=True)
def mla_decode(
    q: Tensor,
    cache: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    latent_size: int,
    max_seqlen_k: int,
    scale: float,
) -> Tensor:
    """mla_attention for steps with at most one token per sequence and as many tokens as sequences.

    For Hopper GPUs: 16-bit latents of 512 and rotated keys of 64 elements, in contiguous blocks of
    8, 16, 32 or a multiple of 64 tokens. RuntimeError on a mismatch.
    """
    return q.new_empty(*q.shape[:2], latent_size)
