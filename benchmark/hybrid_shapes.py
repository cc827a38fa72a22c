# SPDX-License-Identifier: Apache-2.0
"""Shapes of models with gated delta nets: one of Qwen3-Next's own sizes, and small ones."""

from __future__ import annotations

from typing import Any

_NEXT: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "decoder_sparse_step": 1,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "num_nextn_predict_layers": 1,
    "partial_rotary_factor": 0.25,
    "rope_theta": 10000000.0,
    "tie_word_embeddings": False,
}
_SMALL: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
}
HYBRID_SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-next-24l": {  # Qwen3-Next-80B-A3B with half of its layers: 40 billion parameters
        **_NEXT,
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 5120,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
    },
    "small-next": {**_NEXT, **_SMALL},
    "small-qwen3.5-moe": {
        **{key: value for key, value in _NEXT.items() if key != "num_nextn_predict_layers"},
        **_SMALL,
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "model_type": "qwen3_5_moe_text",
        "mtp_num_hidden_layers": 1,
    },
    "tiny-next": {  # to try a benchmark where there is no time
        **_NEXT,
        "vocab_size": 32000,
        "hidden_size": 64,
        "intermediate_size": 128,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
    },
}
