# SPDX-License-Identifier: Apache-2.0
"""Linear attention with states: the gated delta rule, Mamba-2's scan, the convolution before."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rtp_llm.ops.declare import MutableTensor, operator
from rtp_llm.ops.linear_attention.triton_linear_attention import (
    takes_chunks,
    triton_gated_delta_chunks,
)
from rtp_llm.ops.registry import Operator, has_kernel


@operator(composite=True)
def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    inputs: MutableTensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    state_read: Tensor,
    state_write: Tensor,
    max_seqlen_q: int,
    early: bool = False,
    bias: Tensor | None = None,
) -> Tensor:
    """silu(bias[c] + sum over i of weight[c, K - 1 - i] * x at i tokens before), per channel, in
    float32.

    x [T, C]: the new tokens of B sequences, at cu_seqlens_q [B + 1] as for `paged_attention`, with
    a free row stride; float32, bfloat16 or float16, like weight [C, K] and bias [C] (None: zeros).
    Tokens before a chunk are read from `inputs` [N, W, C], and the chunk's own are written to it:
    row p % W of a block is the input at position p, so tokens that are rejected later need no copy:
    only the length counts.
    Sequence b ends at seq_lens[b], reads block state_read[b] (-1: none; inputs before position 0
    count as zeros whatever the block holds) and writes block state_write[b], which then has the
    last K - 1 inputs and the chunk's, at most W of them. Block ids out of range are not written. K
    is 1 to 4, W >= K; chunks of up to W - K + 1 tokens may be rolled back. No chunk is longer than
    max_seqlen_q. early: no kernel that may still run writes anything but x, so everything else may
    be read before the preceding kernel has ended.

    Returns [T, C], contiguous; rows that belong to no sequence are zero. RuntimeError on a
    mismatch.

    Source: Mamba (Gu and Dao, 2023); FLA's short convolution; transformers' Qwen3-Next.
    """
    return x.new_empty(x.shape)


def _by_length(kernel: Operator, given: dict[str, Any]) -> Any:
    """Sends chunks that do not fit in the ring to Triton, where it can compute them."""
    qkv, longest, short = given["qkv"], given["max_seqlen_q"], given["ring_k"].shape[1] // 2
    in_triton = longest > short and has_kernel("triton_gated_delta_chunks", qkv.device.type)
    if not in_triton or not takes_chunks(qkv, given["state"]):
        return kernel.call(*given.values())
    given["max_seqlen_q"] = short  # the kernel leaves longer chunks out
    out = kernel.call(*given.values())
    del given["max_seqlen_q"], given["early"]
    triton_gated_delta_chunks(**given, out=out)
    return out


@operator(composite=True, dispatch=_by_length)
def gated_delta_rule(
    qkv: Tensor,
    ba: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: MutableTensor,
    ring_k: MutableTensor,
    ring_u: MutableTensor,
    ring_g: MutableTensor,
    folded: MutableTensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    state_read: Tensor,
    state_write: Tensor,
    max_seqlen_q: int,
    early: bool = False,
) -> Tensor:
    """The gated delta rule, for every value head and token, in float32:

        q, k = q / |q| / sqrt(Dk), k / |k|        |x| = sqrt(sum x^2 + 1e-6)
        g, beta = -exp(a_log) * softplus(a + dt_bias), sigmoid(b)
        S = exp(g) S;  u = beta (v - S k);  S = S + u k^T;  result = S q

    qkv [T, 2 Hk Dk + Hv Dv]: query, key and value heads of the new tokens of B sequences, after the
    convolution; float32, bfloat16 or float16. ba [T, 2 Hv] of the same dtype: b, then a, of each
    value head. Both have a free row stride. a_log, dt_bias float32 [Hv]. Value head h has key
    head h // (Hv / Hk).

    A block holds S after its first `folded` tokens and the updates of the following tokens, so a
    step reads S without writing it and rejected tokens need no copy (ReplaySSM): state float32 or
    bfloat16 [N, Hv, Dv, Dk], ring_k [N, R, Hk, Dk] (keys before their norm, dtype of qkv), ring_u
    float32 [N, R, Hv, Dv], ring_g float32 [N, R, Hv], all at row position % R, R even; folded int32
    [N, Hv, Dv / 8]: one count for each tile of S that a kernel may treat separately.

    Sequence b ends at seq_lens[b] after its chunk; anything a block holds past the chunk's start n
    is ignored. The sequence continues from block state_read[b] (-1: it starts from zeros, whatever
    a block holds) with a `folded` of at most n and at least n - R / 2; its state is written to
    block state_write[b], or not at all if that is out of range. A chunk of up to R / 2 tokens is
    added to the ring; S is written, as of n, only if the ring would not have room for another such
    chunk or if the blocks differ. A longer chunk is folded to its end. No chunk is longer than
    max_seqlen_q. early: no kernel that may still run writes anything but qkv and ba; see
    causal_conv1d.

    Returns [T, Hv, Dv] of qkv's dtype; rows that belong to no sequence are zero. RuntimeError on a
    mismatch.

    Sources: Gated Delta Networks (Yang et al., 2024), transformers' Qwen3-Next; the ring: ReplaySSM
    (SGLang #28695).
    """
    heads, values = state.shape[1:3]
    return qkv.new_empty(qkv.shape[0], heads, values)


@operator(optional=True)
def mamba2_scan(
    xbc: Tensor,
    dt: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    d: Tensor,
    state: MutableTensor,
    ring_k: MutableTensor,
    ring_u: MutableTensor,
    ring_g: MutableTensor,
    folded: MutableTensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    state_read: Tensor,
    state_write: Tensor,
    max_seqlen_q: int,
    dt_min: float,
    dt_max: float,
    early: bool = False,
) -> Tensor:
    """The scan of Mamba-2, for every head and token, in float32:

        t = clamp(softplus(dt + dt_bias), dt_min, dt_max)
        S = exp(-exp(a_log) t) S + t x B^T;  result = S C + d x

    xbc [T, H P + 2 G N]: x of H heads, then B and C of G groups, of the new tokens of B sequences,
    after the convolution; float32, bfloat16 or float16. dt [T, H] of the same dtype. Both have a
    free row stride. a_log, dt_bias and d float32 [H]. Head h has group h // (H / G). N is at most
    512.

    Blocks, indices, `early` and when a block is written are those of gated_delta_rule, with P value
    and N key elements: state float32 or bfloat16 [blocks, H, P, N], ring_k [blocks, R, G, N] has B,
    ring_u [blocks, R, H, P] t x and ring_g [blocks, R, H] -exp(a_log) t.

    Returns [T, H, P] of xbc's dtype; rows that belong to no sequence are zero. RuntimeError on a
    mismatch.

    Sources: Mamba-2 (Dao and Gu, 2024); transformers' Nemotron-H; the ring: ReplaySSM (SGLang
    #28695).
    """
    return xbc.new_empty(xbc.shape[0], *state.shape[1:3])
