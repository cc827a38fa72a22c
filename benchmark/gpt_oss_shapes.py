# SPDX-License-Identifier: Apache-2.0
"""Shapes of gpt-oss, with experts in MXFP4: only for weights that are made in memory."""

from __future__ import annotations

from typing import Any

_COMMON: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "attention_bias": True,
    "tie_word_embeddings": False,
    "rope_theta": 150000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
    "swiglu_limit": 7.0,
    "rms_norm_eps": 1e-5,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
}
GPT_OSS_SHAPES: dict[str, dict[str, Any]] = {
    "gpt-oss-20b": {**_COMMON, "num_hidden_layers": 24, "num_local_experts": 32},
    # Half of the layers: 35 GB.
    "gpt-oss-120b-18l": {**_COMMON, "num_hidden_layers": 18, "num_local_experts": 128},
}
