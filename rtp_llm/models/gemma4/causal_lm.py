# SPDX-License-Identifier: Apache-2.0
"""Gemma 4: heads of two widths, shared keys and values, embeddings for each layer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from rtp_llm.layers import MixerShape, MoeConfig, NormedValueShape, SharedKvShape
from rtp_llm.layers.moe.config import ExpertNames
from rtp_llm.models.config import Features, ModelConfig, make_config
from rtp_llm.models.decoder import Decoder, DecoderForCausalLM
from rtp_llm.models.gemma4.config import Gemma4Config
from rtp_llm.models.gemma4.decoder import Gemma4Decoder
from rtp_llm.models.layer_types import FULL, NEAR, layer_types, rope_of_type
from rtp_llm.models.norm_slots import SANDWICH_NORMS
from rtp_llm.models.raw_config import RawConfig

_ROPE: dict[str, Any] = {
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    NEAR: {"rope_type": "default", "rope_theta": 1e4},
}
_DEFAULTS: dict[str, Any] = {
    "bos_token_id": 2,
    "eos_token_id": 1,
    "global_head_dim": 512,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_attention_heads": 8,
    "num_hidden_layers": 30,
    "num_key_value_heads": 4,
    "num_kv_shared_layers": 0,
    "rms_norm_eps": 1e-6,
    "rope_parameters": _ROPE,
    "tie_word_embeddings": True,
    "vocab_size": 262144,
}
_EVERY = 6  # layers of which the last is full, if config.json does not list their types
_SIZES = ("head_dim", "num_key_value_heads")
_KEYS = re.compile(r"model\.layers\.([0-9]+)\.self_attn\.(?:k_proj|v_proj|k_norm|v_norm)\.")


class Gemma4ForCausalLM(DecoderForCausalLM):
    """Gemma 4 E2B, E4B, 26B-A4B and 31B."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        **_DEFAULTS,
        "hidden_size_per_layer_input": 256,
        "max_position_embeddings": 131072,
        "sliding_window": 512,
        "vocab_size_per_layer_input": 262144,
    }
    OVERFLOWS_FLOAT16: ClassVar[bool] = True
    DECODER: ClassVar[type[Decoder]] = Gemma4Decoder

    @classmethod
    def read_config(cls, raw: RawConfig) -> ModelConfig:
        values = {**raw.values, "hidden_act": raw.text("hidden_activation")}
        if not values.get("rope_parameters"):
            values["rope_parameters"] = _ROPE
        raw = replace(raw, values=values)
        features = cls.features(raw)
        assert features.gemma4 is not None
        full = rope_of_type(raw, FULL, "rope_theta", features.gemma4.full_head_dim)
        plain = replace(raw, values={**values, "rope_parameters": None, "rope_scaling": None})
        return replace(make_config(plain, features), rope=full)

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        if (both := raw.get("use_bidirectional_attention")) not in (None, False, "vision"):
            expected = "null or vision in a model that generates"
            raise raw.error("use_bidirectional_attention", both, expected)
        if raw.get("attn_logit_softcapping"):  # no such model is known
            raise raw.error("attn_logit_softcapping", raw.get("attn_logit_softcapping"), "null")
        kinds = layer_types(raw, _EVERY, full_last=True)
        kinds[-1] = FULL
        window, bias = raw.integer("sliding_window"), raw.flag("attention_bias")
        windows = tuple(window if kind == NEAR else 0 for kind in kinds)
        cap = raw.get("final_logit_softcapping")
        return Features(
            qkv_bias=bias,
            output_bias=bias,
            qk_norm=True,
            norms=SANDWICH_NORMS,
            embedding_scale=raw.integer("hidden_size") ** 0.5,
            attention_scale=1.0,
            logit_cap=0.0 if cap is None else raw.number("final_logit_softcapping"),
            layer_windows=windows,
            local_rope=rope_of_type(raw, NEAR, "rope_theta", raw.integer("head_dim")),
            moe=_experts(raw) if raw.flag("enable_moe_block") else None,
            gemma4=_own(raw, kinds, windows),
        )

    @classmethod
    def mixers(cls, config: ModelConfig) -> tuple[MixerShape, ...]:
        return tuple(_mixer(config, index) for index in range(config.num_layers))

    def ignores(self, name: str) -> bool:
        """Files may have keys and values of layers that read those of others."""
        own, match = self.config.gemma4, _KEYS.match(name)
        assert own is not None
        if match is not None and own.is_shared(int(match[1]), self.config.num_layers):
            return True
        return super().ignores(name)


class Gemma4UnifiedForCausalLM(Gemma4ForCausalLM):
    """Gemma 4 12B, without experts and embeddings for each layer."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        **_DEFAULTS,
        "hidden_size_per_layer_input": 0,
        "max_position_embeddings": 262144,
        "sliding_window": 1024,
    }


class Gemma4ForConditionalGeneration(Gemma4ForCausalLM):
    """The multimodal architecture, of which only the language model is served."""

    TEXT_PREFIXES: ClassVar[tuple[str, ...]] = ("model.language_model.",)
    IGNORED_PREFIXES: ClassVar[tuple[str, ...]] = (
        "model.audio_tower.",
        "model.embed_audio.",
        "model.embed_vision.",
        "model.vision_tower.",
    )


class Gemma4UnifiedForConditionalGeneration(Gemma4UnifiedForCausalLM):
    """The multimodal architecture without towers, of which only the language model is served."""

    TEXT_PREFIXES: ClassVar[tuple[str, ...]] = ("model.language_model.",)
    IGNORED_PREFIXES: ClassVar[tuple[str, ...]] = ("model.embed_audio.", "model.embed_vision.")


def _own(raw: RawConfig, kinds: list[str], windows: tuple[int, ...]) -> Gemma4Config:
    head_dim, kv_heads = _full_sizes(raw, kinds)
    shared, per_layer = raw.count("num_kv_shared_layers"), raw.count("hidden_size_per_layer_input")
    if shared >= len(kinds):
        expected = f"less than num_hidden_layers ({len(kinds)})"
        raise raw.error("num_kv_shared_layers", shared, expected)
    if head_dim % 2:
        raise raw.error("global_head_dim", head_dim, "even, since halves of a head rotate together")
    if (heads := raw.integer("num_attention_heads")) % kv_heads:
        expected = f"a divisor of num_attention_heads ({heads})"
        raise raw.error("num_global_key_value_heads", kv_heads, expected)
    own = Gemma4Config(
        full_head_dim=head_dim,
        full_kv_heads=kv_heads,
        keys_as_values=raw.flag("attention_k_eq_v"),
        shared_layers=shared,
        wide_shared_mlp=raw.flag("use_double_wide_mlp"),
        per_layer_size=per_layer,
        per_layer_vocabulary=_per_layer_vocabulary(raw) if per_layer else 0,
    )
    try:
        for index in range(len(kinds)):
            own.source(index, windows)
    except ValueError as error:
        raise raw.error("num_kv_shared_layers", shared, f"such that {error}") from error
    return own


def _per_layer_vocabulary(raw: RawConfig) -> int:
    key, size = "vocab_size_per_layer_input", raw.integer("vocab_size")
    rows = raw.integer(key)
    if rows < size:
        raise raw.error(key, rows, f"vocab_size ({size}) or more, since every token has a row")
    return rows


def _full_sizes(raw: RawConfig, kinds: list[str]) -> tuple[int, int]:
    """The width of heads and the number of KV heads of layers without a window."""
    usual: Mapping[str, int] = {key: raw.integer(key) for key in _SIZES}
    listed = raw.get("per_layer_config")
    if listed is None:  # as Google publishes them
        head_dim, kv_heads = raw.integer("global_head_dim"), usual["num_key_value_heads"]
        if raw.flag("attention_k_eq_v"):
            kv_heads = raw.integer("num_global_key_value_heads", kv_heads)
        return head_dim, kv_heads
    found: dict[str, set[tuple[int, ...]]] = {FULL: set(), NEAR: set()}
    for index, kind in enumerate(kinds):  # as transformers 5 writes them
        of_layer = listed.get(str(index)) or {}
        sizes = {**usual, **of_layer} if isinstance(of_layer, Mapping) else {}
        values = tuple(sizes.get(key) for key in _SIZES)
        if len(sizes) != len(_SIZES) or not all(type(each) is int and each > 0 for each in values):
            raise raw.error("per_layer_config", of_layer, f"of {' and '.join(_SIZES)} alone")
        found[kind].add(values)  # type: ignore[arg-type]
    if found[NEAR] - {tuple(usual.values())} or len(found[FULL]) != 1:
        raise raw.error("per_layer_config", listed, "the same in all layers of a type")
    ((head_dim, kv_heads),) = found[FULL]
    return head_dim, kv_heads


def _experts(raw: RawConfig) -> MoeConfig:
    return MoeConfig(
        hidden_size=raw.integer("hidden_size"),
        num_experts=raw.integer("num_experts"),
        top_k=raw.integer("top_k_experts"),
        intermediate_size=raw.integer("moe_intermediate_size"),
        router_eps=raw.number("rms_norm_eps"),
        names=ExpertNames(block="", gate="router"),
    )


def _mixer(config: ModelConfig, index: int) -> MixerShape:
    own, window = config.gemma4, config.layer_windows[index]
    assert own is not None
    source = own.source(index, config.layer_windows)
    sizes: dict[str, Any] = {
        "hidden_size": config.hidden_size,
        "num_heads": config.num_heads,
        "num_kv_heads": config.num_kv_heads if window else own.full_kv_heads,
        "head_dim": config.head_dim if window else own.full_head_dim,
        "qkv_bias": config.qkv_bias,
        "output_bias": config.output_bias,
        "norm_eps": config.rms_norm_eps,
        "window": window,
        "scale": config.attention_scale,
    }
    if source != index:
        return SharedKvShape(**sizes, source=source)
    return NormedValueShape(**sizes, keys_as_values=own.keys_as_values and not window)
