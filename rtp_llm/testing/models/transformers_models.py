# SPDX-License-Identifier: Apache-2.0
"""Small random models made with transformers, saved as a user would get them."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import torch

from rtp_llm.testing.light_transformers import light_transformers
from rtp_llm.testing.models.families import FAMILIES, family_classes

with light_transformers():
    from transformers import (
        DeepseekV2Config,
        DeepseekV2ForCausalLM,
        DeepseekV3Config,
        DeepseekV3ForCausalLM,
        DeepseekV32Config,
        DeepseekV32ForCausalLM,
        Gemma2Config,
        Gemma2ForCausalLM,
        Gemma3Config,
        Gemma3ForCausalLM,
        Gemma3ForConditionalGeneration,
        Gemma3TextConfig,
        Gemma4Config,
        Gemma4ForCausalLM,
        Gemma4ForConditionalGeneration,
        Gemma4TextConfig,
        Gemma4UnifiedForCausalLM,
        Gemma4UnifiedTextConfig,
        GlmMoeDsaConfig,
        GlmMoeDsaForCausalLM,
        GptOssConfig,
        GptOssForCausalLM,
        GraniteMoeHybridConfig,
        GraniteMoeHybridForCausalLM,
        LlamaConfig,
        LlamaForCausalLM,
        Mistral3Config,
        Mistral3ForConditionalGeneration,
        MistralConfig,
        MistralForCausalLM,
        MixtralConfig,
        MixtralForCausalLM,
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen2MoeConfig,
        Qwen2MoeForCausalLM,
        Qwen3_5Config,
        Qwen3_5ForCausalLM,
        Qwen3_5ForConditionalGeneration,
        Qwen3_5MoeConfig,
        Qwen3_5MoeForCausalLM,
        Qwen3_5MoeForConditionalGeneration,
        Qwen3_5MoeTextConfig,
        Qwen3_5TextConfig,
        Qwen3Config,
        Qwen3ForCausalLM,
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        Qwen3NextConfig,
        Qwen3NextForCausalLM,
    )

_KINDS: dict[str, tuple[Any, Any]] = {
    "deepseek_v2": (DeepseekV2Config, DeepseekV2ForCausalLM),
    "deepseek_v3": (DeepseekV3Config, DeepseekV3ForCausalLM),
    "deepseek_v32": (DeepseekV32Config, DeepseekV32ForCausalLM),
    "gemma2": (Gemma2Config, Gemma2ForCausalLM),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM),
    "gemma3_images": (Gemma3Config, Gemma3ForConditionalGeneration),
    "gemma4": (Gemma4TextConfig, Gemma4ForCausalLM),
    "gemma4_experts": (Gemma4TextConfig, Gemma4ForCausalLM),
    "gemma4_images": (Gemma4Config, Gemma4ForConditionalGeneration),
    "gemma4_unified": (Gemma4UnifiedTextConfig, Gemma4UnifiedForCausalLM),
    "glm_moe_dsa": (GlmMoeDsaConfig, GlmMoeDsaForCausalLM),
    "gpt_oss": (GptOssConfig, GptOssForCausalLM),
    "granite4": (GraniteMoeHybridConfig, GraniteMoeHybridForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
    "ministral3_images": (Mistral3Config, Mistral3ForConditionalGeneration),
    "mistral": (MistralConfig, MistralForCausalLM),
    "mistral3_images": (Mistral3Config, Mistral3ForConditionalGeneration),
    "mixtral": (MixtralConfig, MixtralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen2_moe": (Qwen2MoeConfig, Qwen2MoeForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "qwen3_5": (Qwen3_5TextConfig, Qwen3_5ForCausalLM),
    "qwen3_5_images": (Qwen3_5Config, Qwen3_5ForConditionalGeneration),
    "qwen3_5_moe": (Qwen3_5MoeTextConfig, Qwen3_5MoeForCausalLM),
    "qwen3_5_moe_images": (Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration),
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
    "qwen3_next": (Qwen3NextConfig, Qwen3NextForCausalLM),
}
_EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
}
_MLA = {
    "num_key_value_heads": 4,
    "head_dim": 16,  # of what rotates
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 20,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "routed_scaling_factor": 1.7,
}
# With few heads most logits would be zero, and a selection among equals is arbitrary.
_INDEXER = {
    **_MLA,
    "n_shared_experts": 1,
    "index_head_dim": 24,
    "index_n_heads": 32,
    "index_topk": 12,
}
_HYBRID = {
    "head_dim": 32,
    "full_attention_interval": 3,
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 8.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 32,
}
_GEMMA3 = {
    "sliding_window": 24,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "query_pre_attn_scalar": 48,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
_GEMMA4 = {
    "head_dim": 32,
    "global_head_dim": 64,
    "sliding_window": 24,
    "final_logit_softcapping": 15.0,
    "hidden_size_per_layer_input": 0,
}
# E2B and E4B: embeddings for each layer, and shared keys and values.
_GEMMA4_SMALL = {
    **_GEMMA4,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": 199,
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 3,
    "use_double_wide_mlp": True,
}
_GEMMA4_LARGE = {
    **_GEMMA4,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
}
_GRANITE4 = {
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 24,
    "shared_intermediate_size": 80,
    "num_local_experts": 0,
    "embedding_multiplier": 1.5,
    "residual_multiplier": 0.7,
    "attention_multiplier": 0.1,
    "logits_scaling": 1.5,
}
_SHARED = {**_EXPERTS, "shared_expert_intermediate_size": 64}
_VISION = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "num_position_embeddings": 16,
    "out_hidden_size": 64,
}
_SIGLIP = {
    "hidden_size": 32,
    "image_size": 28,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "patch_size": 14,
}
_TOWERS = {
    "gemma3_images": _SIGLIP,
    "gemma4_images": {
        "head_dim": 16,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "num_key_value_heads": 2,
        "position_embedding_size": 64,
    },
    "ministral3_images": _SIGLIP,
    "mistral3_images": _SIGLIP,
}
# Settings that a kind needs in addition to _SMALL.
_OF_KIND: dict[str, dict[str, Any]] = {
    "deepseek_v2": {**_MLA, "n_shared_experts": 2},
    "deepseek_v3": {**_MLA, "n_shared_experts": 1, "n_group": 4, "topk_group": 2},
    "deepseek_v32": {**_INDEXER, "n_group": 4, "topk_group": 2},
    "gemma2": {
        "sliding_window": 24,
        "query_pre_attn_scalar": 48,
        "attn_logit_softcapping": 4.0,
        "final_logit_softcapping": 15.0,
        "tie_word_embeddings": False,
    },
    "gemma3": {**_GEMMA3, "tie_word_embeddings": False},
    "gemma3_images": _GEMMA3,
    "gemma4": _GEMMA4_SMALL,
    "gemma4_experts": {
        **_GEMMA4_LARGE,
        "enable_moe_block": True,
        "num_experts": 8,
        "top_k_experts": 3,
        "moe_intermediate_size": 48,
    },
    "gemma4_images": _GEMMA4_SMALL,
    "gemma4_unified": _GEMMA4_LARGE,
    "glm_moe_dsa": {**_INDEXER, "index_topk_pattern": "FSF"},
    "gpt_oss": {
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "sliding_window": 24,
        "rope_parameters": _YARN,
    },
    "granite4": _GRANITE4,
    "ministral3_images": {**FAMILIES["ministral3"][1], "model_type": "ministral3"},
    "mistral3_images": {"model_type": "mistral", "tie_word_embeddings": False},
    "mixtral": {"num_local_experts": 6},
    "qwen2_moe": _SHARED,
    "qwen3_5": _HYBRID,
    "qwen3_5_images": _HYBRID,
    "qwen3_5_moe": {**_HYBRID, **_SHARED},
    "qwen3_5_moe_images": {**_HYBRID, **_SHARED},
    "qwen3_next": {**_HYBRID, **_SHARED},
    "qwen3_moe": {**_EXPERTS, "norm_topk_prob": True},
}
_SMALL: dict[str, Any] = {
    "vocab_size": 199,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 112,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
# Processors and summation orders change logits of about 20 by around 1e-5.
CLEAR_GAP = 5e-4


def save_model(
    folder: Path, kind: str, *, seed: int = 0, shard_bytes: int | None = None, **settings: Any
) -> Any:
    """Write a random `kind` model to `folder` and return it (a PreTrainedModel, float32).

    `settings` are keys of its config. Norms, biases and weights are all drawn at random, wide
    enough that the most likely token is clearly ahead of the second. `shard_bytes`: several files.
    """
    config_class, model_class = family_classes(kind) if kind in FAMILIES else _KINDS[kind]
    own = FAMILIES[kind][1] if kind in FAMILIES else _OF_KIND.get(kind, {})
    hidden = 16 * (settings.get("num_attention_heads") or 4)
    values = {"hidden_size": hidden, **_SMALL, **own, **settings}
    if kind.endswith("_images"):
        tied = values.pop("tie_word_embeddings", kind in _TOWERS)
        vision = _TOWERS.get(kind) or {**_VISION, "out_hidden_size": hidden}
        values = {"text_config": values, "vision_config": vision, "tie_word_embeddings": tied}
    torch.manual_seed(seed)
    model: Any = model_class(config_class(**values, attn_implementation="eager"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            randomize(name, parameter)
            # Embeddings are scaled up, and layers' results normalised, which would hardly matter.
            if kind.startswith("gemma") and "embed_tokens" in name:
                parameter.mul_(0.25)
            elif kind.startswith("gemma") and ".post_" in name:
                parameter.add_(3.0)
            # Scores are not scaled: as large as in other models by the norms' weights alone.
            elif kind.startswith("gemma4") and name.endswith(("q_norm.weight", "k_norm.weight")):
                parameter.mul_(len(parameter) ** -0.25)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.uniform_(-0.1, 0.1)
            elif name.endswith("layer_scalar"):
                buffer.uniform_(0.5, 1.5)
    model.config.allow_global_per_layer_attribute_access = True  # of Gemma 4
    model.generation_config.eos_token_id = None
    with light_transformers():
        model.save_pretrained(folder, max_shard_size=shard_bytes or "1GB")
    return model.eval()


def randomize(name: str, parameter: torch.nn.Parameter) -> None:
    """Draw a parameter anew, in place."""
    if name.endswith(("norm.weight", "norm_1.weight", "norm_2.weight", "norm_f.weight", "scale")):
        middle = round(float(parameter.mean()))  # 0 of those which are added to one
        parameter.uniform_(middle - 0.5, middle + 0.5)
    elif name.endswith("bias"):
        parameter.normal_(std=0.2)
    elif any(each in name for each in ("embed_tokens", "model.embeddings.weight", "lm_head")):
        parameter.normal_(std=0.5)
    else:
        parameter.normal_(std=1.5 * parameter.shape[-1] ** -0.5)


@torch.inference_mode()
def expected_logits(model: Any, prompt: list[int]) -> torch.Tensor:
    """float32 logits [len(prompt), V] of the whole prompt at once."""
    logits: torch.Tensor = model(input_ids=torch.tensor([prompt])).logits[0]
    return logits.float()


class NearTieError(AssertionError):
    """A near tie that processors round differently; use another prompt or seed."""


@torch.inference_mode()
def expected_tokens(model: Any, prompt: list[int], count: int) -> list[int]:
    """The `count` tokens of greedy decoding, never stopping early; NearTieError on close calls."""
    ids = torch.tensor([prompt])
    generated: torch.Tensor = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=count,
        min_new_tokens=count,
        eos_token_id=None,
    )
    best = expected_logits(model, generated[0].tolist())[len(prompt) - 1 : -1].topk(2).values
    gap = float((best[:, 0] - best[:, 1]).min())
    if gap < CLEAR_GAP:
        raise NearTieError(f"the two best tokens are {gap:.1e} apart, less than {CLEAR_GAP}")
    return [int(token) for token in generated[0, len(prompt) :]]


def clear_prompt(model: Any, length: int, count: int) -> tuple[list[int], list[int]]:
    """A random prompt whose `count` greedy tokens are no close calls, and those tokens."""
    for seed in itertools.count():
        prompt = random_prompt(length, seed)
        with contextlib.suppress(NearTieError):
            return prompt, expected_tokens(model, prompt, count)
    raise AssertionError("unreachable")


def random_prompt(length: int, seed: int = 0, vocabulary: int = 199) -> list[int]:
    """Token ids without the special ones."""
    generator = torch.Generator().manual_seed(seed)
    return [int(token) for token in torch.randint(3, vocabulary, (length,), generator=generator)]
