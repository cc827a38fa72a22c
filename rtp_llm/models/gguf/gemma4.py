# SPDX-License-Identifier: Apache-2.0
"""The config.json that a Gemma 4 in a GGUF file would have."""

from __future__ import annotations

from typing import Any

from rtp_llm.models.gguf.keys import GgufKeys

_NEAR, _FULL = "sliding_attention", "full_attention"
_EVERY = 6  # layers of which the last is full, if the file does not say


def gemma4_values(keys: GgufKeys, layers: int) -> dict[str, Any]:
    """The keys besides those that all models have, of a model of so many layers.

    Raises ModelConfigError for lists that no layers of this architecture have.
    """
    kinds = _kinds(keys, layers)
    key = keys.needed("attention.key_length")
    shared = keys.integer("attention.shared_kv_layers") or 0
    inner, wide = _inner_sizes(keys, layers, shared)
    near: int = keys.integer("attention.key_length_swa") or key
    heads = _kv_heads(keys, kinds)
    table = keys.integer("embedding_length_per_layer_input") or 0
    full = kinds.index(_FULL) if _FULL in kinds else 0
    return {
        "attention_k_eq_v": keys.shape(f"blk.{full}.attn_v.weight") is None,
        "final_logit_softcapping": keys.number("final_logit_softcapping") or None,
        "head_dim": near,
        "hidden_size_per_layer_input": table,
        "intermediate_size": inner,
        "layer_types": kinds,
        "num_key_value_heads": heads[_NEAR],
        "num_kv_shared_layers": shared,
        "partial_rotary_factor": None,
        "per_layer_config": {
            str(layer): {"head_dim": key, "num_key_value_heads": heads[_FULL]}
            for layer, kind in enumerate(kinds)
            if kind == _FULL
        },
        "rope_parameters": {
            # The file has the divisors of the angles of channels that hardly turn.
            _FULL: {"rope_type": "default", "rope_theta": keys.number("rope.freq_base") or 1e6},
            _NEAR: {"rope_type": "default", "rope_theta": keys.number("rope.freq_base_swa") or 1e4},
        },
        "rope_scaling": None,
        "sliding_window": keys.needed("attention.sliding_window"),
        "use_double_wide_mlp": wide,
        "vocab_size_per_layer_input": keys.size(0, ["per_layer_token_embd.weight"]),
        **(_experts(keys) if keys.integer("expert_count") else {}),
    }


def _experts(keys: GgufKeys) -> dict[str, Any]:
    return {
        "enable_moe_block": True,
        "moe_intermediate_size": keys.needed("expert_feed_forward_length"),
        "num_experts": keys.needed("expert_count"),
        "top_k_experts": keys.needed("expert_used_count"),
    }


def _kinds(keys: GgufKeys, layers: int) -> list[str]:
    """The types of layers; the last one is always full."""
    listed = keys.listed("attention.sliding_window_pattern")
    if isinstance(listed, list):
        kinds = [_NEAR if has_window else _FULL for has_window in listed[:layers]]
    else:
        every = max(1, listed or _EVERY)
        kinds = [_NEAR if (index + 1) % every else _FULL for index in range(layers)]
    return [*kinds[:-1], _FULL]


def _kv_heads(keys: GgufKeys, kinds: list[str]) -> dict[str, int]:
    """The KV heads of each type of layers."""
    listed = keys.listed("attention.head_count_kv")
    if not isinstance(listed, list):
        heads = listed or keys.needed("attention.head_count")
        return {_NEAR: heads, _FULL: heads}
    if len(listed) < len(kinds):
        raise keys.error("attention.head_count_kv", f"must have {len(kinds)} numbers")
    found: dict[str, int] = {}
    for kind, heads in zip(kinds, listed, strict=False):
        if found.setdefault(kind, heads) != heads:
            raise keys.error("attention.head_count_kv", f"differs between layers of {kind}")
    return {_NEAR: found[_FULL], **found}


def _inner_sizes(keys: GgufKeys, layers: int, shared: int) -> tuple[int, bool]:
    """The width of the feed-forward part, and whether that of layers at the end is double."""
    listed = keys.listed("feed_forward_length")
    if not isinstance(listed, list):
        return listed or 1, False
    sizes = listed[:layers] or [0]
    shared = min(shared, layers)
    for factor in (1, 2):
        if sizes == [sizes[0]] * (layers - shared) + [factor * sizes[0]] * shared:
            return sizes[0], factor == 2
    raise keys.error("feed_forward_length", "is neither the same nor double in the last layers")
