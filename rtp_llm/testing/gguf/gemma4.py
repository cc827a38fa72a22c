# SPDX-License-Identifier: Apache-2.0
"""What files of Gemma 4 have besides those of other models."""

from __future__ import annotations

from typing import Any

from rtp_llm.testing.gguf.writer import Typed

# Modules of a layer and outside of them, and their names in a file.
GEMMA4_NAMES = {
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "router.proj": "ffn_gate_inp",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "layer_scalar": "layer_output_scale",
}
# Tensors that have a name without "weight".
GEMMA4_SCALES = {
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
}


def gemma4_metadata(config: Any) -> dict[str, Any]:
    """What differs between layers, of which each has an entry."""
    layers = [config.per_layer_config[index] for index in range(config.num_hidden_layers)]
    near, full = (config.per_layer_config[f"{kind}_attention"] for kind in ("sliding", "full"))
    shared = config.num_kv_shared_layers
    wide = config.use_double_wide_mlp
    sizes = [
        config.intermediate_size * (1 + wide * (layer >= len(layers) - shared))
        for layer in range(len(layers))
    ]
    found = {
        "attention.head_count_kv": Typed("i32", [each.num_key_value_heads for each in layers]),
        "attention.key_length": full.head_dim,
        "attention.key_length_swa": near.head_dim,
        "attention.shared_kv_layers": shared,
        "attention.sliding_window_pattern": [
            each == "sliding_attention" for each in config.layer_types
        ],
        "attention.value_length": full.head_dim,
        "attention.value_length_swa": near.head_dim,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        "feed_forward_length": Typed("i32", sizes),
        "rope.dimension_count": full.head_dim,
        "rope.dimension_count_swa": near.head_dim,
    }
    if config.enable_moe_block:
        found["expert_used_count"] = config.top_k_experts
    return found
