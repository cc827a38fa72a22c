# SPDX-License-Identifier: Apache-2.0
"""ERNIE 4.5, dense and with mixtures of experts: a Llama that rotates neighbouring channels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from rtp_llm.layers.moe import ExpertNames, MoeConfig
from rtp_llm.models.config import Features
from rtp_llm.models.decoder import DecoderForCausalLM
from rtp_llm.models.decoders.deepseek_v2 import expect
from rtp_llm.models.raw_config import RawConfig

_DEFAULTS: dict[str, Any] = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
}
_NAMES = ExpertNames(
    shared="shared_experts", choice_bias="moe_statics.e_score_correction_bias", choice_bias_axes=2
)


class Ernie4_5ForCausalLM(DecoderForCausalLM):
    """`use_bias` is for all projections."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        **_DEFAULTS,
        "head_dim": 128,
        "num_key_value_heads": 2,
    }

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        bias = raw.flag("use_bias")
        return Features(qkv_bias=bias, output_bias=bias, mlp_bias=bias, rope_in_pairs=True)


class Ernie4_5_MoeForCausalLM(Ernie4_5ForCausalLM):
    """Experts are chosen by softmax and a bias; the weights of the chosen ones are normalised."""

    # The layers that predict further tokens are not used.
    IGNORED_PREFIXES: ClassVar[tuple[str, ...]] = ("model.mtp_",)
    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        **_DEFAULTS,
        "moe_intermediate_size": 1536,
        "moe_k": 6,
        "moe_layer_end_index": -1,
        "moe_layer_interval": 1,
        "moe_layer_start_index": 1,
        "moe_num_experts": 64,
        "moe_num_shared_experts": 2,
        "num_key_value_heads": 4,
    }

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        expect(raw, "use_bias", False)
        sparse = _sparse_layers(raw)
        found = super().features(raw)
        return replace(found, moe=_experts(raw) if any(sparse) else None, moe_layers=sparse)


def _experts(raw: RawConfig) -> MoeConfig:
    size = raw.integer("moe_intermediate_size")
    return MoeConfig(
        hidden_size=raw.integer("hidden_size"),
        num_experts=raw.integer("moe_num_experts"),
        top_k=raw.integer("moe_k"),
        intermediate_size=size,
        correction_bias=True,
        group_best=1,
        shared_intermediate_size=size * raw.count("moe_num_shared_experts"),
        names=_NAMES,
    )


def _sparse_layers(raw: RawConfig) -> tuple[bool, ...]:
    layers, step = raw.integer("num_hidden_layers"), raw.integer("moe_layer_interval")
    first, last = raw.count("moe_layer_start_index"), raw.get("moe_layer_end_index")
    last = layers - 1 if last == -1 else last
    return tuple(first <= layer <= last and (layer + 1) % step == 0 for layer in range(layers))
