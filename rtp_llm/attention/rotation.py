# SPDX-License-Identifier: Apache-2.0
"""Processing of a step's queries and keys before attention: norms, rotation, the cache write."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from rtp_llm import ops
from rtp_llm.attention.cache_scales import CacheScales, tensors_of
from rtp_llm.device import Capabilities


class Rotation(NamedTuple):
    """A layer's processing of query and key heads: a norm with weights [D], then rotation.

    `norm_offset` is added to the weights. `cos_sin` float32 [positions, R], cosines first; pairs
    and offset as for `rope_kv_write`. None: no rotation, no norms.
    """

    cos_sin: Tensor | None = None
    q_weight: Tensor | None = None
    k_weight: Tensor | None = None
    eps: float = 1e-6
    is_neox: bool = True
    rotary_offset: int = 0
    norm_offset: float = 0.0


class Rotate(Protocol):
    """Changes the queries of qkv in place and writes keys and values to the cache, divided by
    `scales`. The keys of qkv are undefined afterwards."""

    def __call__(
        self,
        qkv: Tensor,
        positions: Tensor,
        slots: Tensor,
        cache: Tensor,
        rotation: Rotation,
        heads: int,
        kv_heads: int,
        head_dim: int,
        scales: CacheScales | None = None,
    ) -> None: ...


def rotate_in_two_passes(
    qkv: Tensor,
    positions: Tensor,
    slots: Tensor,
    cache: Tensor,
    rotation: Rotation,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scales: CacheScales | None = None,
) -> None:
    """Norms, then rotation with the cache write, as two operators that every device has.

    They keep the cache in the type of the activations, without scales.
    """
    assert scales is None, "scales of a cache in 8 bits"
    cos_sin, q_weight, k_weight, eps, is_neox, offset, norm_offset = rotation
    if q_weight is not None and k_weight is not None:
        ops.qk_rms_norm(qkv, q_weight, k_weight, heads, kv_heads, eps, norm_offset)
    ops.rope_kv_write(
        qkv, positions, cos_sin, cache, slots, heads, kv_heads, head_dim, is_neox, offset
    )


def rotate_in_one_pass(
    qkv: Tensor,
    positions: Tensor,
    slots: Tensor,
    cache: Tensor,
    rotation: Rotation,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scales: CacheScales | None = None,
) -> None:
    """Norms, rotation and cache write in one operator, which leaves the keys of qkv unchanged."""
    cos_sin, q_weight, k_weight, eps, is_neox, offset, norm_offset = rotation
    parts = qkv.view(len(qkv), heads + 2 * kv_heads, head_dim)
    q, k, v = parts[:, :heads], parts[:, heads:-kv_heads], parts[:, -kv_heads:]
    k_cache, v_cache = cache
    k_scale, v_scale = tensors_of(scales)
    ops.rotate_and_store(
        q,
        k,
        v,
        q_out=q,
        q_weight=q_weight,
        k_weight=k_weight,
        eps=eps,
        norm_offset=norm_offset,
        cos_sin=cos_sin,
        positions=positions,
        slots=slots,
        k_cache=k_cache,
        v_cache=v_cache,
        k_scale=k_scale,
        v_scale=v_scale,
        is_neox=is_neox,
        rotary_offset=offset,
    )


def normalize_heads(
    x: Tensor,
    out: Tensor,
    weight: Tensor,
    eps: float,
    cos_sin: Tensor | None = None,
    positions: Tensor | None = None,
) -> None:
    """Norm each head of `x` [T, H, D] with `weight` [D], then rotate it; stored to `out` like x.

    `out` may be x itself. `cos_sin` as in Rotation, with the `positions` int32 [T] of its rows.
    """
    # The operator also takes keys; those given here have no result and are not stored.
    ops.rotate_and_store(
        x,
        x[:, :1],
        q_out=out,
        q_weight=weight,
        k_weight=weight,
        eps=eps,
        cos_sin=cos_sin,
        positions=positions,
    )


def rotation_for(capabilities: Capabilities) -> Rotate:
    """Choose the faster way for a device.

    One pass saves a launch and a round trip through memory where launches are costly.
    """
    one_pass = "one_pass_rotation" in capabilities
    return rotate_in_one_pass if one_pass else rotate_in_two_passes
