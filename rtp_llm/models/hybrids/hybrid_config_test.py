# SPDX-License-Identifier: Apache-2.0
"""Tests of config.json of models with linear attention, and of folders with a part for images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm.attention import CacheDtypes
from rtp_llm.models.config import ModelConfig, ModelConfigError, UnsupportedModelError
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.models.registry import model_class

BASE = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "dtype": "bfloat16",
}
FULL, LINEAR = "full_attention", "linear_attention"


def read(folder: Path, **changes: Any) -> ModelConfig:
    values = {"architectures": ["Qwen3_5ForCausalLM"], **BASE, **changes}
    (folder / "config.json").write_text(json.dumps(values))
    return read_model_config(folder)


def read_parts(folder: Path, text: Any, **outer: Any) -> ModelConfig:
    parts = {"vision_config": {"depth": 2}, "image_token_id": 5, "text_config": text}
    values = {"architectures": ["Qwen3_5ForConditionalGeneration"], **parts, **outer}
    (folder / "config.json").write_text(json.dumps(values))
    return read_model_config(folder)


def test_the_text_part_of_a_folder_with_images_is_read(tmp_path: Path) -> None:
    text = {**BASE, "architectures": ["Other"], "tie_word_embeddings": True, "eos_token_id": 9}
    config = read_parts(tmp_path, text, tie_word_embeddings=False, eos_token_id=8)
    assert config.architecture == "Qwen3_5ForConditionalGeneration"
    assert (config.hidden_size, config.dtype) == (64, torch.bfloat16)
    # transformers ties the head as the folder's own key says.
    assert not config.tie_word_embeddings
    assert config.eos_token_ids == (9,)
    assert read_parts(tmp_path, text).tie_word_embeddings
    del text["dtype"]
    assert read_parts(tmp_path, text, dtype="float16").dtype is torch.float16
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    assert read_parts(tmp_path, text, quantization_config=fp8).stored_in_fp8_blocks


@pytest.mark.parametrize("text", [None, [], "x", 3])
def test_a_folder_with_images_and_no_text_part_is_named(tmp_path: Path, text: Any) -> None:
    with pytest.raises(ModelConfigError, match=r"config\.json: text_config must be an object"):
        read_parts(tmp_path, text)


def test_what_is_refused_is_refused_in_the_text_part(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"other rope type .*longrope"):
        read_parts(tmp_path, BASE | {"rope_parameters": {"rope_type": "longrope"}})
    with pytest.raises(UnsupportedModelError, match=r"multimodal model .*audio_config is set"):
        read_parts(tmp_path, BASE, audio_config={"depth": 1})
    with pytest.raises(UnsupportedModelError, match=r"multimodal model .*vision_config is set"):
        read(tmp_path, vision_config={"depth": 1})


def test_layers_of_one_kind_share_a_cache_group(tmp_path: Path) -> None:
    config = read(tmp_path, layer_types=[LINEAR, FULL, LINEAR, LINEAR])
    assert config.linear_layers == (True, False, True, True)
    model = model_class(config.architecture)
    groups = model.groups_of(config, CacheDtypes(torch.bfloat16, torch.bfloat16, torch.float32))
    assert [group.spec.kind for group in groups.groups] == ["full", "recurrent"]
    assert groups.layer_group == (1, 0, 1, 1)
    assert groups.token_bytes == 2 * 2 * 256 * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": [LINEAR, FULL]}, r"layer_types must be a list of 4 entries .*; not 2"),
        ({"layer_types": [LINEAR] * 4}, "layer_types must be full_attention in one entry"),
        (
            {"layer_types": [FULL, "sliding_attention"] * 2},
            "layer_types must be linear_attention or full_attention in each entry",
        ),
        ({"full_attention_interval": 5}, "full_attention_interval must be at most 4"),
        ({"full_attention_interval": 0}, "full_attention_interval must be a positive integer"),
        ({"linear_key_head_dim": 12}, "linear_key_head_dim must be a multiple of 8"),
        ({"linear_value_head_dim": 20}, "linear_value_head_dim must be a multiple of 8"),
        (
            {"linear_num_value_heads": 6, "linear_num_key_heads": 4},
            r"linear_num_value_heads must be a multiple of linear_num_key_heads \(4\)",
        ),
        ({"linear_conv_kernel_dim": 5}, "linear_conv_kernel_dim must be at most 4"),
        ({"hidden_act": "gelu"}, "hidden_act must be silu"),
        ({"output_gate_type": "sigmoid"}, "output_gate_type must be swish"),
        ({"attn_output_gate": False}, "attn_output_gate must be true"),
        ({"head_dim": 4}, "partial_rotary_factor must be such that an even number of 4"),
        ({"rope_parameters": {"partial_rotary_factor": 2}}, "partial_rotary_factor must be"),
    ],
)
def test_keys_that_do_not_fit_are_named(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelConfigError, match=message):
        read(tmp_path, **changes)


@pytest.mark.parametrize(
    ("changes", "channels"),
    [
        ({}, 64),
        ({"partial_rotary_factor": 0.5}, 128),
        ({"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.125}}, 32),
        ({"rope_parameters": {"rope_theta": 1e6}, "head_dim": 32}, 8),
    ],
)
def test_a_part_of_each_head_rotates(
    tmp_path: Path, changes: dict[str, Any], channels: int
) -> None:
    assert read(tmp_path, **changes).rope.rotary_dim == channels
