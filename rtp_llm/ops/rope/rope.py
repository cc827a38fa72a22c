# SPDX-License-Identifier: Apache-2.0
"""Rotary embedding fused with the write of keys and values into the paged cache."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import IndexTensor, MutableTensor, operator


@operator
def rope_kv_write(
    qkv: MutableTensor,
    positions: IndexTensor,
    cos_sin: Tensor | None,
    kv_cache: MutableTensor | None,
    slot_mapping: IndexTensor | None,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    is_neox: bool,
    rotary_offset: int = 0,
) -> None:
    """In place: rotate the query and key heads of qkv, and store its keys and values in the cache.

    qkv [T, (H + 2 Hk) D] with a free row stride: query, key, then value heads. positions int32 [T]
    are rows of cos_sin, float32 [positions, R]: R / 2 cosines, then sines; None = no rotation.
    Channels [rotary_offset, rotary_offset + R) of a head are rotated: pairs (i, i + R / 2) with
    is_neox, otherwise (2 i, 2 i + 1). kv_cache [2, N, S, Hk, D] of qkv's dtype stores token t in
    block slot_mapping[t] // S at place slot_mapping[t] % S (int32 [T]; -1 = not stored); both may
    be None, or neither. RuntimeError on a mismatch; on the CPU IndexError for a position or slot
    out of range.
    """
