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
    "glm4": ("Glm4", {}),
    "granite": (
        "Granite",
        {
            "attention_multiplier": 0.2,
            "embedding_multiplier": 3.0,
            "logits_scaling": 0.7,
            "residual_multiplier": 0.6,
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
