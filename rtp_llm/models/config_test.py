# SPDX-License-Identifier: Apache-2.0
"""Tests of reading config.json: both rope forms, defaults, contradictions, everything refused."""

from __future__ import annotations

import json
import math

import pytest
import torch

from rtp_llm.attention import CacheDtypes
from rtp_llm.config.family_refusals import FAMILY_REFUSALS
from rtp_llm.config.refusals import REFUSALS
from rtp_llm.models.config import ModelConfigError, UnsupportedModelError
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.models.refusals import AREA, CHECKS
from rtp_llm.models.registry import known_architectures, model_class

FLOATS = CacheDtypes(torch.float32, torch.float32)
BASE = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}


def read(folder, generation=None, drop=(), **changes):
    values = {key: value for key, value in {**BASE, **changes}.items() if key not in drop}
    (folder / "config.json").write_text(json.dumps(values))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return read_model_config(folder)


def test_rope_settings_that_are_no_dictionary_are_refused(tmp_path):
    with pytest.raises(UnsupportedModelError, match="linear"):
        read(tmp_path, rope_scaling="linear")


def test_a_plain_llama(tmp_path):
    config = read(tmp_path)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, 16)
    assert config.dtype is torch.bfloat16
    assert (config.qkv_bias, config.output_bias, config.mlp_bias, config.qk_norm) == (False,) * 4
    assert config.layer_windows == (0,) * 4
    groups = model_class(config.architecture).groups_of(config, FLOATS)
    assert (len(groups.groups), groups.layer_group) == (1, (0,) * 4)
    assert (config.eos_token_ids, config.bos_token_id) == ((2,), 1)
    assert groups.token_bytes == 2 * 4 * 2 * 16 * 4
    assert not config.tie_word_embeddings


def test_biases_follow_the_architecture(tmp_path):
    llama = read(tmp_path, attention_bias=True, mlp_bias=True)
    assert (llama.qkv_bias, llama.output_bias, llama.mlp_bias) == (True,) * 3
    qwen2 = read(tmp_path, architectures=["Qwen2ForCausalLM"])
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.qk_norm) == (True, False, False)
    qwen3 = read(tmp_path, architectures=["Qwen3ForCausalLM"])
    assert (qwen3.qkv_bias, qwen3.qk_norm, qwen3.head_dim) == (False, True, 128)


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"sliding_window": 24}, (24,) * 4),
        ({"sliding_window": None}, (0,) * 4),
        ({}, (4096,) * 4),
    ],
)
def test_mistral_windows(tmp_path, changes, windows):
    config = read(tmp_path, architectures=["MistralForCausalLM"], **changes)
    assert config.layer_windows == windows


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"sliding_window": 24, "max_window_layers": 2}, (0,) * 4),
        (
            {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 3},
            (0, 0, 0, 24),
        ),
        ({"use_sliding_window": True, "sliding_window": None}, (0,) * 4),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 24,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
            (24, 0, 24, 0),
        ),
    ],
)
def test_qwen_windows(tmp_path, architecture, changes, windows):
    config = read(tmp_path, architectures=[architecture], **changes)
    assert config.layer_windows == windows


def test_layers_of_one_window_share_a_cache_group(tmp_path):
    changes = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 2}
    config = read(tmp_path, architectures=["Qwen2ForCausalLM"], **changes)
    groups = model_class(config.architecture).groups_of(config, FLOATS)
    assert [group.spec.window for group in groups.groups] == [0, 24]
    assert groups.layer_group == (0, 0, 1, 1)


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 128}


@pytest.mark.parametrize("form", ["rope_scaling", "rope_parameters", "type"])
@pytest.mark.parametrize(
    ("style", "settings", "reach"),
    [
        ("linear", {"factor": 2.0}, 1024),
        ("dynamic", {"factor": 2.0}, 1024),
        ("llama3", LLAMA3, 512),
        ("yarn", YARN, 512),
    ],
)
def test_both_forms_of_rope_settings(tmp_path, form, style, settings, reach):
    kind = {"type": style} if form == "type" else {"rope_type": style}
    if form == "rope_parameters":
        config = read(tmp_path, rope_parameters={"rope_theta": 5e5, **kind, **settings})
    else:
        config = read(tmp_path, rope_theta=5e5, rope_scaling={**kind, **settings})
    rope = config.rope
    assert (rope.style, rope.rotary_dim, rope.theta) == (style, 16, 5e5)
    assert rope.factor == settings["factor"]
    assert rope.max_position == settings.get("original_max_position_embeddings", 512)
    assert config.context_limit == reach


def test_rope_defaults(tmp_path):
    assert read(tmp_path).rope.theta == 10000.0
    assert read(tmp_path, rope_scaling=None, rope_theta=2e4).rope.theta == 2e4
    default = read(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 3e4}).rope
    assert (default.style, default.theta) == ("default", 3e4)


@pytest.mark.parametrize(
    ("extra", "factor", "expected"),
    [
        ({}, 4.0, 0.1 * math.log(4) + 1),
        ({"attention_factor": 0.7}, 4.0, 0.7),
        (
            {"mscale": 0.5, "mscale_all_dim": 2.0},
            4.0,
            (0.05 * math.log(4) + 1) / (0.2 * math.log(4) + 1),
        ),
        ({"factor": None}, 4.0, 0.1 * math.log(4) + 1),
        ({"factor": 1.0}, 1.0, 1.0),
    ],
)
def test_yarn_attention_factor(tmp_path, extra, factor, expected):
    rope = read(tmp_path, rope_scaling={"rope_type": "yarn", **YARN, **extra}).rope
    assert rope.factor == factor
    assert rope.attention_factor == pytest.approx(expected)


def test_an_original_length_beside_the_rope_settings_wins(tmp_path):
    changes = {"rope_scaling": {"rope_type": "yarn", **YARN}}
    rope = read(tmp_path, original_max_position_embeddings=256, **changes).rope
    assert rope.max_position == 256


def test_end_ids_come_from_both_files(tmp_path):
    assert read(tmp_path, eos_token_id=[5, 6]).eos_token_ids == (5, 6)
    both = read(tmp_path, generation={"eos_token_id": [7, 5]}, eos_token_id=5)
    assert both.eos_token_ids == (7, 5)


# Changes to BASE that make each row of the table apply.
REFUSED = {
    "unknown architecture": {"architectures": ["FalconForCausalLM"]},
    "quantized checkpoint": {"quantization_config": {"quant_method": "aqlm"}},
    "FP8 checkpoint with other scales": {
        "quantization_config": {"quant_method": "fp8", "activation_scheme": "groups"}
    },
    "FP8 checkpoint of other blocks": {
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}
    },
    "mixture of experts": {"num_local_experts": 8},
    "multimodal model": {"vision_config": {"depth": 2}},
    "encoder-decoder model": {"is_encoder_decoder": True},
    "other rope type": {"rope_scaling": {"type": "longrope", "factor": 2.0}},
    "rope per layer type": {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
    "partial rotary embedding": {"partial_rotary_factor": 0.5},
    "dual chunk attention": {"dual_chunk_attention_config": {"chunk_size": 4}},
    "soft-capped logits": {"final_logit_softcapping": 30.0},
    "other activation": {"hidden_act": "relu"},
    "is_causal false": {"is_causal": False},
    "other layer type": {"layer_types": ["chunked_attention"] * 4},
    "other number type": {"torch_dtype": "float8_e4m3fn"},
}
# Rows that the files of the folder decide, not the keys of config.json; tested with the loader.
BY_FILES = {
    "GGUF architecture",  # gguf/values_test.py
    "classification head of a GGUF file",
    "GGUF tensor type",
    "quantized weights without a format",
    "FP8 blocks of several parts",
    "dummy weights in this format",
    "stored formats that do not go together",
    "adapter folder",
    "Mistral's own layout",
    "encoder that is used as a decoder",  # encoders/read_config_test.py
    "head size of an encoder",
    "weights that are not safetensors",
}
# The row of an architecture, which is tested with those that are unknown.
BY_NAME = {row.name for row in FAMILY_REFUSALS}
# Rows that depend on settings as well as the model; also tested with the loader and at start-up.
BY_SETTINGS = {
    "EAGLE-3 head of scaled embeddings",
    "draft model of another kind",
    "draft model of another vocabulary",
    "draft model with recurrent layers",
    "drafts at positions of three axes",
    "float16 of activations beyond its range",
    "fp8 with another dtype",
    "no layer of multi-token prediction",
    "quantized twice",
    "settings of FP8 products without any",
    "tensor parallelism of experts with settings of their own",
    "tensor parallelism of such sizes",
}
ROWS = {row.name: row for row in REFUSALS if row.area == AREA}


def test_every_row_of_the_table_has_its_test():
    assert set(ROWS) == set(REFUSED) | BY_NAME | BY_FILES | BY_SETTINGS
    assert set(CHECKS) == set(REFUSED) - {"unknown architecture"} | BY_NAME


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_refused_with_its_row(tmp_path, name):
    with pytest.raises(UnsupportedModelError) as caught:
        read(tmp_path, **REFUSED[name])
    message = str(caught.value)
    assert "config.json: " in message or name == "unknown architecture"
    if name == "unknown architecture":
        assert message.startswith(f"FalconForCausalLM is not supported: {ROWS[name].reason}")
    else:
        assert message.startswith(f"LlamaForCausalLM: {ROWS[name].message}")


FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"quant_method": "compressed-tensors"},
            "quantized checkpoint .*-tensors format",
        ),
        ({"activation_scheme": "static"}, "with other scales .*activation_scheme 'static'"),
        ({"weight_block_size": [1, 128]}, r"of other blocks .*weight_block_size \[1, 128\]"),
        ({"fmt": "e5m2"}, "of other blocks .*fmt 'e5m2'"),
    ],
)
def test_fp8_blocks_are_read_with_dynamic_activations_only(tmp_path, changes, message):
    assert read(tmp_path, quantization_config=FP8 | {"fmt": "e4m3"}).stored_in_fp8_blocks
    assert not read(tmp_path).stored_in_fp8_blocks
    with pytest.raises(UnsupportedModelError, match=message):
        read(tmp_path, quantization_config=FP8 | changes)


@pytest.mark.parametrize(
    ("named", "changes", "message"),
    [
        ("Qwen3NanoForCausalLM", {}, r"Its layers are .*first: Qwen3\w+, .*Llama"),
        ("Qwen3ForQuestionAnswering", {}, "Its layers are .* the nearest first: Qwen3ForCaus"),
        ("MistralForQuestionAnswering", {}, "Its layers are .* first: MistralForCausalLM, "),
        ("OtherMoeForCausalLM", {}, r"chooses or computes its experts .*\(config.json: a Moe arch"),
        (
            "PaliGemmaForCausalLM",
            {"vision_config": {"depth": 1}},
            "Only text .*vision_config is set",
        ),
        ("Gemma3nForConditionalGeneration", {"vision_config": {}}, "Its layers have embeddings of"),
        ("Gemma4AssistantForCausalLM", {}, r"Its layers read .*\(config.json: Gemma4Assistant"),
        ("DeepseekV4ForCausalLM", {}, "Its layers have .* compressed tokens"),
        ("Glm5NextForConditionalGeneration", {"vision_config": {}}, "Its layers have .* channel"),
        ("KimiLinearForCausalLM", {}, "Their linear attention has a decay"),
        ("MiniMaxM3SparseForConditionalGeneration", {"vision_config": {}}, "Its indexer selects"),
        ("Qwen4ExpForCausalLM", {}, "Its layers have .* n-grams"),
        (
            "RecurrentGemmaForCausalLM",
            {"final_logit_softcapping": 30.0},
            r"only Gemma 2, 3 and 4 cap .*softcapping is set",
        ),
    ],
)
def test_an_unknown_architecture_is_answered_with_the_nearest(tmp_path, named, changes, message):
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        read(tmp_path, architectures=[named], **changes)
    assert str(caught.value).startswith(f"{named} is not supported: ")
    assert all(name in str(caught.value) for name in known_architectures())


@pytest.mark.parametrize("named", ["GPT2LMHeadModel", "BloomForCausalLM", "T5ForConditionalGen"])
def test_a_family_that_is_like_none_has_no_nearest(tmp_path, named):
    known = ", ".join(known_architectures())
    with pytest.raises(UnsupportedModelError) as caught:
        read(tmp_path, architectures=[named])
    assert str(caught.value).endswith(f" Supported: {known}.")


def test_a_long_name_of_an_architecture_is_cut(tmp_path):
    with pytest.raises(UnsupportedModelError, match=r"'xxx.* Its layers are not impl") as caught:
        read(tmp_path, architectures=["x" * 10**6])
    assert len(str(caught.value)) < 3000


@pytest.mark.parametrize("listed", [None, [], "LlamaForCausalLM", {"0": "x"}, 5])
def test_a_model_without_architectures_is_refused(tmp_path, listed):
    with pytest.raises(UnsupportedModelError, match="no architectures entry is not supported"):
        read(tmp_path, architectures=listed)


def test_no_advice_breaks_a_model():
    for row in ROWS.values():
        assert "Remove" not in row.change
        assert "architectures" not in row.change


def test_experts_that_no_layer_has_are_none(tmp_path):
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    mixture = {"architectures": ["Qwen3MoeForCausalLM"], **experts}
    config = read(tmp_path, **mixture)
    assert config.moe.num_experts == 4
    assert config.moe_layers == (True,) * 4
    config = read(tmp_path, **mixture, mlp_only_layers=[0, 1, 2, 3])
    assert config.moe is None
    assert config.moe_layers == (False,) * 4


@pytest.mark.parametrize(("name", "why"), [("adapter_config", "Merge the"), ("params", "Mistral")])
def test_other_folders_are_refused(tmp_path, name, why):
    (tmp_path / f"{name}.json").write_text('{"use_biases": true}')
    with pytest.raises(UnsupportedModelError, match=why):
        read_model_config(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "hidden_size must be a positive integer; it is missing"),
        ({"vocab_size": "many"}, "vocab_size must be a positive integer; not 'many'"),
        ({"num_key_value_heads": 3}, r"num_key_value_heads must be a divisor .* \(4\); not 3"),
        ({"head_dim": 15}, "head_dim must be even"),
        ({"rope_scaling": {"type": "linear"}}, "rope setting factor must be a positive number"),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, "rope setting low_freq_factor"),
        ({"eos_token_id": "</s>"}, "eos_token_id must be a token id"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
    ],
)
def test_contradictions_name_the_key(tmp_path, changes, message):
    with pytest.raises(ModelConfigError, match=message):
        read(tmp_path, **changes)


def test_layer_types_must_cover_the_layers(tmp_path):
    changes = {"use_sliding_window": True, "layer_types": ["sliding_attention"] * 3}
    with pytest.raises(ModelConfigError, match="layer_types must be a list of 4 entries"):
        read(tmp_path, architectures=["Qwen3ForCausalLM"], **changes)


def test_a_missing_or_broken_file_is_named(tmp_path):
    with pytest.raises(ModelConfigError, match=r"config\.json is missing"):
        read_model_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelConfigError, match=r"cannot read .*config\.json"):
        read_model_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelConfigError, match="must hold a JSON object, not list"):
        read_model_config(tmp_path)


def test_the_table_of_architectures_loads():
    for name in known_architectures("generate"):
        assert model_class(name).__name__ == name
    with pytest.raises(ValueError, match=r"'GPT2LMHeadModel' is not supported; known: .*Llama"):
        model_class("GPT2LMHeadModel")
