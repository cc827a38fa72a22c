# SPDX-License-Identifier: Apache-2.0
"""Settings of small random models of the families that few tests need."""

from __future__ import annotations

import importlib
from typing import Any

from rtp_llm.testing.light_transformers import light_transformers

# Kind -> the beginning of the names of its classes in transformers, and its settings.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "exaone4": (
        "Exaone4",
        {
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "ernie4_5": ("Ernie4_5", {"use_bias": True}),
    "ernie4_5_moe": (
        "Ernie4_5_Moe",
        {
            "moe_num_experts": 8,
            "moe_k": 3,
            "moe_intermediate_size": 48,
            "tie_word_embeddings": False,
        },
    ),
    "glm4": ("Glm4", {}),
    "glm4_moe": (
        "Glm4Moe",
        {
            "attention_bias": True,
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 48,
            "n_group": 4,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "routed_scaling_factor": 1.7,
            "topk_group": 2,
            "use_qk_norm": True,
        },
    ),
    "glm4_moe_lite": (
        "Glm4MoeLite",
        {
            "head_dim": 16,
            "kv_lora_rank": 32,
            "moe_intermediate_size": 48,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "num_key_value_heads": 4,
            "q_lora_rank": 48,
            "qk_nope_head_dim": 24,
            "qk_rope_head_dim": 16,
            "v_head_dim": 20,
        },
    ),
    "granite": (
        "Granite",
        {
            "attention_multiplier": 0.2,
            "embedding_multiplier": 3.0,
            "logits_scaling": 0.7,
            "residual_multiplier": 0.6,
        },
    ),
    "minimax_m2": (
        "MiniMaxM2",
        {"num_local_experts": 8, "num_experts_per_tok": 3, "rotary_dim": 32},
    ),
    "ministral3": (
        "Ministral3",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.3,
            }
        },
    ),
    "nemotron_h": (
        "NemotronH",
        {
            "layers_block_type": [
                "linear_attention",
                "mlp",
                "full_attention",
                "mlp",
                "linear_attention",
            ],
            "num_hidden_layers": 5,
            "mamba_num_heads": 8,
            "time_step_min": 1e-9,  # which transformers observes in prompts
            "mamba_head_dim": 24,
            "n_groups": 2,
            "ssm_state_size": 24,
        },
    ),
    "olmo2": ("Olmo2", {}),
    "olmo3": (
        "Olmo3",
        {
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 64,
                    "rope_theta": 5e4,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e4},
            },
        },
    ),
    "phi3": ("Phi3", {}),
    "seed_oss": ("SeedOss", {"attention_out_bias": True, "mlp_bias": True}),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0, 1]}),
}
FAMILIES["granite_moe"] = (
    "GraniteMoe",
    {**FAMILIES["granite"][1], "num_local_experts": 6, "num_experts_per_tok": 3},
)


def family_classes(kind: str) -> tuple[Any, Any]:
    """The config class and the model class of one of FAMILIES."""
    name = FAMILIES[kind][0]
    with light_transformers():
        transformers = importlib.import_module("transformers")
        return getattr(transformers, f"{name}Config"), getattr(transformers, f"{name}ForCausalLM")
