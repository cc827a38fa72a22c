# SPDX-License-Identifier: Apache-2.0
"""Gemma 4: what of folders is read or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rtp_llm.attention import CacheDtypes
from rtp_llm.layers import NormedValueShape, SharedKvShape
from rtp_llm.models.config import ModelConfig, ModelConfigError, UnsupportedModelError
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.models.gemma4.causal_lm import Gemma4ForCausalLM
from rtp_llm.models.registry import model_class
from rtp_llm.testing.models.contiguous_runner import ContiguousRunner
from rtp_llm.testing.models.open_model import open_model
from rtp_llm.testing.models.transformers_models import (
    expected_logits,
    random_prompt,
    save_model,
)

FULL_ROPE = {
    "partial_rotary_factor": 0.25,
    "rope_theta": 1000000.0,
    "rope_type": "proportional",
}
ROPE = {
    "full_attention": FULL_ROPE,
    "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
}
COMMON: dict[str, Any] = {
    "final_logit_softcapping": 30.0,
    "global_head_dim": 512,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "rope_parameters": ROPE,
    "tie_word_embeddings": True,
    "vocab_size": 262144,
}
E2B = {
    **COMMON,
    "attention_k_eq_v": False,
    "enable_moe_block": False,
    "hidden_size": 1536,
    "hidden_size_per_layer_input": 256,
    "intermediate_size": 6144,
    "num_attention_heads": 8,
    "num_experts": None,
    "num_global_key_value_heads": None,
    "num_hidden_layers": 35,
    "num_key_value_heads": 1,
    "num_kv_shared_layers": 20,
    "layer_types": [*["sliding_attention"] * 4, "full_attention"] * 7,
    "sliding_window": 512,
    "use_double_wide_mlp": True,
    "vocab_size_per_layer_input": 262144,
}
A4B = {
    **COMMON,
    "attention_k_eq_v": True,
    "enable_moe_block": True,
    "hidden_size": 2816,
    "hidden_size_per_layer_input": 0,
    "intermediate_size": 2112,
    "moe_intermediate_size": 704,
    "num_attention_heads": 16,
    "num_experts": 128,
    "num_global_key_value_heads": 2,
    "num_hidden_layers": 30,
    "num_key_value_heads": 8,
    "num_kv_shared_layers": 0,
    "sliding_window": 1024,
    "top_k_experts": 8,
    "use_bidirectional_attention": "vision",
    "use_double_wide_mlp": False,
}
FLOATS = CacheDtypes(torch.bfloat16, torch.bfloat16)


def read(folder: Path, text: dict[str, Any], **changes: Any) -> ModelConfig:
    """The config of a folder as Google publishes them."""
    values = {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "audio_config": {"hidden_size": 8},
        "audio_token_id": 258881,
        "boa_token_id": 256000,
        "image_token_id": 258880,
        "text_config": {**text, **changes},
        "video_token_id": 258884,
        "vision_config": {"hidden_size": 8},
    }
    (folder / "config.json").write_text(json.dumps(values))
    return read_model_config(folder)


def test_layers_of_e2b(tmp_path: Path) -> None:
    config = read(tmp_path, E2B)
    mixers: Any = model_class(config.architecture).mixers(config)
    assert [isinstance(each, NormedValueShape) for each in mixers] == [True] * 15 + [False] * 20
    # The last layers of their types before layer 15.
    assert {each.source for each in mixers[15:] if each.window} == {13}
    assert {each.source for each in mixers[15:] if not each.window} == {14}
    assert [each.head_dim for each in mixers[:5]] == [256] * 4 + [512]
    assert {each.num_kv_heads for each in mixers} == {1}
    groups = Gemma4ForCausalLM.groups_of(config, FLOATS)
    assert [len(group.layers) for group in groups.groups] == [3, 12]
    assert groups.token_bytes == 2 * 2 * (3 * 512 + 12 * 256)
    assert isinstance(mixers[34], SharedKvShape) and mixers[34].cache_spec(FLOATS) is None
    assert config.logit_cap == 30.0 and config.attention_scale == 1.0


def test_layers_of_26b(tmp_path: Path) -> None:
    config = read(tmp_path, A4B)
    mixers: Any = model_class(config.architecture).mixers(config)
    assert [each.window for each in mixers] == [*[1024] * 5, 0] * 5
    full = mixers[5]
    assert (full.num_kv_heads, full.head_dim, full.keys_as_values) == (2, 512, True)
    near = mixers[4]
    assert (near.num_kv_heads, near.head_dim, near.keys_as_values) == (8, 256, False)
    assert config.moe is not None and config.moe.top_k == 8
    assert all(config.moe_layers)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_kv_shared_layers": 35}, r"num_kv_shared_layers must be less than .*\(35\); not 35"),
        ({"num_kv_shared_layers": 31}, "layer 4 finds an earlier layer"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention must be null or vis"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping must be null; not 50.0"),
        ({"global_head_dim": 511}, "global_head_dim must be even"),
        (
            {"attention_k_eq_v": True, "num_global_key_value_heads": 3},
            r"num_global_key_value_heads must be a divisor of num_attention_heads \(8\); not 3",
        ),
        (
            {"per_layer_config": {"4": {"head_dim": 512, "intermediate_size": 3}}},
            "per_layer_config must be of head_dim and num_key_value_heads alone",
        ),
        (
            {"per_layer_config": {"4": {"head_dim": 512}}},
            "per_layer_config must be the same in all layers of a type",
        ),
        ({"vocab_size_per_layer_input": None}, "vocab_size_per_layer_input must be a positive"),
        ({"vocab_size_per_layer_input": 50}, "vocab_size_per_layer_input must be vocab_size"),
        (
            {"rope_parameters": {**ROPE, "full_attention": {**FULL_ROPE, "factor": "x"}}},
            "a rope setting of full_attention must be",
        ),
    ],
    ids=str,
)
def test_contradictions_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigError, match=message):
        read(tmp_path, E2B, **changes)


def test_float16_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, "gemma4")
    with pytest.raises(UnsupportedModelError, match="Gemma4ForCausalLM: float16 of activations"):
        open_model(tmp_path, torch.float16)


def test_keys_of_layers_that_read_those_of_others_are_not_loaded(tmp_path: Path) -> None:
    """Some files have them."""
    model = save_model(tmp_path, "gemma4")
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    for name in ("k_proj", "v_proj", "k_norm"):
        first = weights[f"model.layers.0.self_attn.{name}.weight"]
        weights[f"model.layers.3.self_attn.{name}.weight"] = torch.full_like(first, torch.nan)
    save_file(weights, file, {"format": "pt"})
    prompt = random_prompt(40)
    found = ContiguousRunner(open_model(tmp_path), 1, 64).prefill(prompt)
    torch.testing.assert_close(found, expected_logits(model, prompt), rtol=1e-4, atol=1e-4)
