# SPDX-License-Identifier: Apache-2.0
"""A decode step's attention in one pass, on the devices that have a kernel for it."""

from __future__ import annotations

from torch import Tensor

from rtp_llm.ops.declare import MutableTensor, operator


@operator(optional=True)
def decode_attention(
    qkv: Tensor,
    kv_cache: MutableTensor,
    counters: MutableTensor,
    positions: Tensor,
    seq_lens: Tensor,
    slot_mapping: Tensor,
    block_table: Tensor,
    scale: float,
    cos_sin: Tensor | None = None,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    eps: float = 1e-6,
    norm_offset: float = 0.0,
    is_neox: bool = True,
    rotary_offset: int = 0,
    window: int = 0,
    soft_cap: float = 0.0,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    early: bool = False,
) -> Tensor:
    """Norms, rotation, cache write and attention for one new token of each sequence.

    qkv [B, (H + 2 Hk) D] of bfloat16 or float16, rows may be strided: row b holds the query, key
    and value heads of sequence b and is not modified. kv_cache [2, N, S, Hk, D] of qkv's dtype or
    of e4m3fn (divided by k_scale and v_scale, float32, one number), S a power of two, at least 8.
    seq_lens [B] count the new key, which is stored at slot_mapping [B], the place that block_table
    [B, M] gives for it. Norm weights [D], norm_offset and cos_sin float32 [positions, R] as for
    `rotate_and_store`, window and soft_cap as for `paged_attention`. A sequence without keys, or
    with its slot or position out of range, gets zeros and stores nothing.

    early: no kernel that may still run writes anything but qkv, so lengths, tables and old keys are
    read before the preceding kernel has ended.

    counters int32, at least B * Hk, hold zeros and are reset to zeros; calls that share them must
    run one after another. Returns [B, H * D]. RuntimeError on a mismatch, and for what no kernel
    supports: D other than 64, 128 and 256, groups H / Hk above 16 (8 with D = 256).
    """
    return qkv.new_empty(qkv.shape[0], qkv.shape[1] - 2 * kv_cache.shape[3] * kv_cache.shape[4])
