# SPDX-License-Identifier: Apache-2.0
"""Reads the keys of config.json that describe multi-head latent attention."""

from __future__ import annotations

from rtp_llm.attention import IndexerConfig
from rtp_llm.layers import IndexerShape, MlaShape
from rtp_llm.models.raw_config import RawConfig
from rtp_llm.models.refusals import rope_settings, rope_style
from rtp_llm.models.rope_config import yarn_scale


def read_mla(raw: RawConfig) -> MlaShape:
    """The sizes of a DeepSeek model's attention; ModelConfigError names a key that does not fit."""
    query_rank = 0 if raw.get("q_lora_rank") is None else raw.integer("q_lora_rank")
    if raw.flag("attention_bias") and not query_rank:
        expected = "false where q_lora_rank is null: the query projection has no bias there"
        raise raw.error("attention_bias", True, expected)
    rope_size = raw.integer("qk_rope_head_dim")
    if rope_size % 2:
        raise raw.error("qk_rope_head_dim", rope_size, "even, since its channels rotate in pairs")
    nope_size = raw.integer("qk_nope_head_dim")
    heads = raw.integer("num_attention_heads")
    return MlaShape(
        hidden_size=raw.integer("hidden_size"),
        num_heads=heads,
        query_rank=query_rank,
        rank=raw.integer("kv_lora_rank"),
        rope_size=rope_size,
        nope_size=nope_size,
        value_size=raw.integer("v_head_dim"),
        scale=(nope_size + rope_size) ** -0.5 * _yarn_scale(raw),
        bias=raw.flag("attention_bias"),
        is_neox=raw.get("rope_interleave") is False,
    )


def read_indexer(raw: RawConfig, *, is_neox: bool) -> IndexerShape:
    """The sizes of a lightning indexer; ModelConfigError names a key that does not fit.

    ``is_neox``: its rotation pairs halves.
    """
    if raw.get("q_lora_rank") is None:
        raise raw.error("q_lora_rank", None, "a size: index queries are made of compressed queries")
    dim, rope_size = raw.integer("index_head_dim"), raw.integer("qk_rope_head_dim")
    if dim < rope_size:
        raise raw.error("index_head_dim", dim, f"qk_rope_head_dim ({rope_size}) or more")
    heads, top_k = raw.integer("index_n_heads"), raw.integer("index_topk")
    config = IndexerConfig(num_heads=heads, head_dim=dim, top_k=top_k, is_neox=is_neox)
    return IndexerShape(raw.integer("hidden_size"), raw.integer("q_lora_rank"), config)


def _yarn_scale(raw: RawConfig) -> float:
    """The factor on attention scores with stretched positions: mscale_all_dim, squared."""
    settings = rope_settings(raw.values)
    weight = float(settings.get("mscale_all_dim") or 0.0)
    factor = float(settings.get("factor") or 1.0)
    if rope_style(raw.values) == "default" or not weight:
        return 1.0
    return yarn_scale(factor, weight) ** 2
