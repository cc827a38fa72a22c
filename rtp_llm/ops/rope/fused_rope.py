# SPDX-License-Identifier: Apache-2.0
"""Rotary embedding, per-head norm and cache write in one pass, for any layout of heads and cache.

`rope_kv_write` does the same for the engine's own layout; the classes of rtp_llm.compat and
`apply_rope_with_cos_sin_cache_inplace` are built on this operator.
"""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import IndexTensor, MutableTensor, operator


@operator
def rotate_and_store(
    q: Tensor,
    k: Tensor,
    v: Tensor | None = None,
    *,
    q_out: MutableTensor | None = None,
    k_out: MutableTensor | None = None,
    v_out: MutableTensor | None = None,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    eps: float = 1e-6,
    norm_offset: float = 0.0,
    cos_sin: Tensor | None = None,
    positions: IndexTensor | None = None,
    cu_seqlens: Tensor | None = None,
    past_lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    slots: IndexTensor | None = None,
    k_cache: MutableTensor | None = None,
    v_cache: MutableTensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    scales: MutableTensor | None = None,
    is_neox: bool = True,
    rotary_offset: int = 0,
    height_pairs: int = 0,
    width_pairs: int = 0,
    axes_interleaved: bool = False,
    log_length: int = 0,
    padded_queries: int = 0,
) -> None:
    """Norm, then rotate query and key heads; write them to *_out, and keys and values to the cache.

    q [T, H, D], k and v [T, Hk, D] of one float dtype, and the results of the same shape, of that
    dtype or of 8-bit floats, may be strided by token and head; a result may be its input. q_weight
    and k_weight [D]: RMS norm of each head, norm_offset as for `rms_norm`. cos_sin float32
    [positions, R]: cosines, then sines; None = no rotation; pairs as for `rope_kv_write`. positions
    int32 or int64 [T], or [T, 3] if height_pairs or width_pairs pairs rotate by the second or third
    number; None = the place in the sequence, past_lengths[b] + (index among the request's new
    tokens). past_lengths int32 [B] and cu_seqlens int32 [B + 1]: the requests; without cu_seqlens
    each has one token. log_length: queries at positions beyond it grow by log(position + 1) /
    log(log_length). padded_queries: tokens of request b start at row b * padded_queries of q_out.

    k_cache and v_cache [rows, S, Hk, D], of q's dtype or 8-bit floats (saturating), with any
    strides except within a head; or [rows, S / a, a, Hk, D / c, c], where runs of a tokens and
    chunks of c channels (a power of two) may be anywhere. Token t goes to row slots[t] // S, place
    slots[t] % S, or by its place in the sequence to the row that offsets int32 [B, 1, 2, M] gives
    for its block: of keys, then of values. Negative rows and slots are not stored. Stored values
    are divided by k_scale and v_scale (float32, one number); their entries in scales float32 [rows,
    S, Hk] are set to 1. RuntimeError on a mismatch. A position that is not a row of cos_sin, a
    place without a block in offsets, a row or slot outside the cache: IndexError on the CPU,
    skipped elsewhere.
    """
