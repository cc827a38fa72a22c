# SPDX-License-Identifier: Apache-2.0
"""GLM-4.5 to 4.7: grouped attention with DeepSeek-V3's experts; 4.7-Flash has its attention too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from rtp_llm.models.config import Features
from rtp_llm.models.decoders.deepseek_v2 import sparse_layers
from rtp_llm.models.decoders.deepseek_v3 import DeepseekV3ForCausalLM
from rtp_llm.models.raw_config import RawConfig

_DEFAULTS: dict[str, Any] = {
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "n_group": 1,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-5,
    "topk_group": 1,
}


class Glm4MoeForCausalLM(DeepseekV3ForCausalLM):
    """Half of each head rotates. The layer after the last one predicts a further token."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        **_DEFAULTS,
        "max_position_embeddings": 131072,
        "moe_intermediate_size": 1408,
        "n_routed_experts": 128,
        "num_experts_per_tok": 8,
        "num_key_value_heads": 8,
        "partial_rotary_factor": 0.5,
        "routed_scaling_factor": 1.0,
    }

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        sparse, further = sparse_layers(raw), raw.get("num_nextn_predict_layers")
        return Features(
            qkv_bias=raw.flag("attention_bias"),
            qk_norm=raw.flag("use_qk_norm"),
            moe=cls.experts(raw) if any(sparse) else None,
            moe_layers=sparse,
            mtp_layers=0 if further is None else raw.count("num_nextn_predict_layers"),
        )


class Glm4MoeLiteForCausalLM(DeepseekV3ForCausalLM):
    """GLM-4.7-Flash: DeepSeek-V3 with layers of experts as listed."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        **_DEFAULTS,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "kv_lora_rank": 512,
        "max_position_embeddings": 202752,
        "moe_intermediate_size": 1536,
        "n_routed_experts": 64,
        "num_experts_per_tok": 4,
        "num_key_value_heads": 20,
        "q_lora_rank": 768,
        "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64,
        "routed_scaling_factor": 1.8,
        "topk_method": "noaux_tc",
        "v_head_dim": 256,
    }

    @classmethod
    def features(cls, raw: RawConfig) -> Features:
        found, listed = super().features(raw), raw.get("mlp_layer_types")
        if listed is None:
            return found
        layers = raw.integer("num_hidden_layers")
        if len(listed) != layers or not {"dense", "sparse"}.issuperset(listed):
            raise raw.error("mlp_layer_types", listed, f'{layers} times "dense" or "sparse"')
        sparse = tuple(kind == "sparse" for kind in listed)
        return replace(found, moe=cls.experts(raw) if any(sparse) else None, moe_layers=sparse)
