# SPDX-License-Identifier: Apache-2.0
"""Gemma 2 and 3: norms after attention and feed-forward too, windows in most layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from rtp_llm.models.config import Features, ModelConfig, make_config
from rtp_llm.models.decoder import DecoderForCausalLM
from rtp_llm.models.layer_types import FULL, NEAR, layer_types, rope_of_type
from rtp_llm.models.norm_slots import SANDWICH_NORMS
from rtp_llm.models.raw_config import RawConfig

_DEFAULTS: dict[str, Any] = {
    "bos_token_id": 2,
    "eos_token_id": 1,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
GEMMA3_DEFAULTS: dict[str, Any] = {
    **_DEFAULTS,
    "max_position_embeddings": 131072,
    "rope_local_base_freq": 10000.0,
    "rope_theta": 1000000.0,
    "sliding_window_pattern": 6,
    "vocab_size": 262208,
}


class Gemma2ForCausalLM(DecoderForCausalLM):
    """Scores and logits are capped; every second layer has a window, from the first on."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        **_DEFAULTS,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "max_position_embeddings": 8192,
        "vocab_size": 256000,
    }
    OVERFLOWS_FLOAT16: ClassVar[bool] = True

    @classmethod
    def read_config(cls, raw: RawConfig) -> ModelConfig:
        return super().read_config(_with_activation(raw))

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        return replace(_features(raw, _causal_window(raw), 2), logit_cap=_cap(raw, "final"))


class Gemma3ForCausalLM(DecoderForCausalLM):
    """Norms of queries and keys; layers with a window have a rotation of their own."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = GEMMA3_DEFAULTS
    OVERFLOWS_FLOAT16: ClassVar[bool] = True

    @classmethod
    def read_config(cls, raw: RawConfig) -> ModelConfig:
        return gemma3_config(raw, cls.features(raw))

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        return gemma3_features(raw, _causal_window(raw))


class Gemma3ForConditionalGeneration(Gemma3ForCausalLM):
    """The multimodal architecture, of which only the language model is served."""

    TEXT_PREFIXES: ClassVar[tuple[str, ...]] = (
        "language_model.model.",
        "model.language_model.",  # as newer transformers may save it
    )
    IGNORED_PREFIXES: ClassVar[tuple[str, ...]] = (
        "model.multi_modal_projector.",
        "model.vision_tower.",
        "multi_modal_projector.",
        "vision_tower.",
    )


def gemma3_features(raw: RawConfig, window: int) -> Features:
    """The features of Gemma 3's layers, with this window in those that have one."""
    if _cap(raw, "attn"):  # transformers reads the key and does not use it
        raise raw.error("attn_logit_softcapping", raw.get("attn_logit_softcapping"), "null")
    return replace(
        _features(raw, window, raw.integer("sliding_window_pattern")),
        qk_norm=True,
        logit_cap=_cap(raw, "final"),
        local_rope=rope_of_type(raw, NEAR, "rope_local_base_freq", raw.integer("head_dim")),
    )


def gemma3_config(raw: RawConfig, features: Features) -> ModelConfig:
    """The config of Gemma 3's layers; those without a window have a rotation of their own."""
    raw, longest = _with_activation(raw), raw.integer("max_position_embeddings")
    full = rope_of_type(raw, FULL, "rope_theta", raw.integer("head_dim"))
    # The stretched positions are counted in max_position_embeddings.
    full = replace(full, max_position=int(longest / full.factor))
    plain = replace(raw, values={**raw.values, "rope_parameters": None, "rope_scaling": None})
    return replace(make_config(plain, features), rope=full)


def _features(raw: RawConfig, window: int, every: int) -> Features:
    kinds = layer_types(raw, every, full_last=True)
    bias = raw.flag("attention_bias")
    return Features(
        qkv_bias=bias,
        output_bias=bias,
        norm_offset=1.0,
        norms=SANDWICH_NORMS,
        embedding_scale=raw.integer("hidden_size") ** 0.5,
        attention_scale=raw.number("query_pre_attn_scalar") ** -0.5,
        soft_cap=_cap(raw, "attn"),
        layer_windows=tuple(window if kind == NEAR else 0 for kind in kinds),
    )


def _cap(raw: RawConfig, what: str) -> float:
    key = f"{what}_logit_softcapping"
    return 0.0 if raw.get(key) is None else raw.number(key)


def _causal_window(raw: RawConfig) -> int:
    if raw.flag("use_bidirectional_attention"):
        raise raw.error("use_bidirectional_attention", True, "false in a model that generates")
    return 0 if raw.get("sliding_window") is None else raw.integer("sliding_window")


def _with_activation(raw: RawConfig) -> RawConfig:
    """`raw` with the activation under its common key; `hidden_act` of old files was not used."""
    return replace(raw, values={**raw.values, "hidden_act": raw.text("hidden_activation")})
