# SPDX-License-Identifier: Apache-2.0
"""Fused RoPE and cache write for other engines: in place, storing to flat slot buffers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rtp_llm.ops.rope.fused_rope import rotate_and_store


@dataclass(frozen=True)
class FusedSetKVBufferArg:
    """Where keys and values go: `cache_loc` (int32 or int64 [T]) are slots of flat buffers.

    value [T, Hk * D] (or [T, Hk, D]); k_buffer and v_buffer [slots, Hk * D] (or [slots, Hk, D]) of
    value's dtype or of 8-bit floats. k_scale and v_scale (float32, one number) divide what is
    stored. A negative slot is not stored.
    """

    value: Tensor
    k_buffer: Tensor
    v_buffer: Tensor
    k_scale: Tensor | None
    v_scale: Tensor | None
    cache_loc: Tensor


def apply_rope_with_cos_sin_cache_inplace(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox: bool = True,
    fused_set_kv_buffer_arg: FusedSetKVBufferArg | None = None,
    enable_pdl: bool | None = None,
) -> None:
    """Rotate query [T, H * head_size] and key [T, Hk * head_size] in place; store if asked to.

    positions int32 or int64 [T]; cos_sin_cache float32 [positions, rotary size]: cosines, then
    sines. With `enable_pdl` None the library decides, and currently never uses programmatic
    dependent launch. Raises RuntimeError on a mismatch, and ValueError for `enable_pdl` True.
    """
    if enable_pdl:
        raise ValueError(
            "enable_pdl=True: this kernel has no programmatic dependent launch; leave enable_pdl "
            "out, or set it to None or False"
        )
    q, k = _heads(query, head_size), _heads(key, head_size)
    target = fused_set_kv_buffer_arg
    rotate_and_store(
        q,
        k,
        None if target is None else _heads(target.value, head_size),
        q_out=q,
        k_out=k,
        positions=positions,
        cos_sin=cos_sin_cache,
        slots=None if target is None else target.cache_loc,
        k_cache=None if target is None else _heads(target.k_buffer, head_size).unsqueeze(1),
        v_cache=None if target is None else _heads(target.v_buffer, head_size).unsqueeze(1),
        k_scale=None if target is None else target.k_scale,
        v_scale=None if target is None else target.v_scale,
        is_neox=is_neox,
    )


def _heads(rows: Tensor, head_size: int) -> Tensor:
    """View rows of heads as [T, heads, head_size]; raises an error if a view is impossible."""
    if rows.dim() == 3 and rows.shape[2] == head_size:
        return rows
    if rows.dim() != 2 or rows.shape[1] % head_size:
        raise RuntimeError(
            f"rows are {list(rows.shape)}; expected [tokens, heads * {head_size}] or "
            f"[tokens, heads, {head_size}]"
        )
    return rows.view(rows.shape[0], rows.shape[1] // head_size, head_size)
