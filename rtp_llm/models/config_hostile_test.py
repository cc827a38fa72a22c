# SPDX-License-Identifier: Apache-2.0
"""Tests of config.json as it may come from anybody: refused with file and key, nothing taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.layers import options as layer_options
from rtp_llm.model_folder import ModelFilesError
from rtp_llm.models.config import ModelConfigError, UnsupportedModelError
from rtp_llm.models.config_fields import FIELDS, ROPE_FIELDS
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.testing.models.open_model import open_model

NAN, INFINITY = float("nan"), float("inf")
BASE: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
    "num_experts_per_tok": 2,
    "sliding_window": None,
}
LLAMA = {"architectures": ["LlamaForCausalLM"]}


def write(folder: Path, content: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(content))
    return folder


def rope(**settings: Any) -> dict[str, Any]:
    return {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, **settings}}


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}

HOSTILE: list[tuple[str, dict[str, Any]]] = [
    ("num_hidden_layers", {"num_hidden_layers": 10**9}),
    ("num_hidden_layers", {"num_hidden_layers": 0}),
    ("num_hidden_layers", {"num_hidden_layers": True}),
    ("hidden_size", {"hidden_size": 10**18}),
    ("hidden_size", {"hidden_size": -64}),
    ("hidden_size", {"hidden_size": 64.0}),
    ("hidden_size", {"hidden_size": [64]}),
    ("hidden_size", {"hidden_size": 65}),
    ("intermediate_size", {"intermediate_size": 10**15}),
    ("vocab_size", {"vocab_size": 10**12}),
    ("vocab_size", {"vocab_size": "128"}),
    ("vocab_size", {"vocab_size": False}),
    ("num_attention_heads", {"num_attention_heads": 0}),
    ("num_attention_heads", {"num_attention_heads": 10**7}),
    ("num_key_value_heads", {"num_key_value_heads": 3}),
    ("num_key_value_heads", {"num_key_value_heads": 10**10}),
    ("head_dim", {"head_dim": 10**9}),
    ("head_dim", {"head_dim": 7}),
    ("head_dim", {"head_dim": "16"}),
    ("max_position_embeddings", {"max_position_embeddings": 10**12}),
    ("max_position_embeddings", {"max_position_embeddings": None}),
    ("max_position_embeddings must be an integer from 2", {"max_position_embeddings": 1}),
    ("rms_norm_eps", {"rms_norm_eps": 0}),
    ("rms_norm_eps", {"rms_norm_eps": -1e-6}),
    ("rms_norm_eps", {"rms_norm_eps": NAN}),
    ("rms_norm_eps", {"rms_norm_eps": INFINITY}),
    ("rms_norm_eps", {"rms_norm_eps": "1e-6"}),
    ("rms_norm_eps", {"rms_norm_eps": 10**400}),
    ("rope_theta", {"rope_theta": 0}),
    ("rope_theta", {"rope_theta": -10000.0}),
    ("rope_theta", {"rope_theta": NAN}),
    ("rope_theta", {"rope_theta": INFINITY}),
    ("rope_theta", {"rope_theta": 1}),
    ("rope_theta", {"rope_theta": True}),
    ("rope_theta", {"rope_parameters": {"rope_type": "default", "rope_theta": 0.0}}),
    ("rope_theta", {"rope_parameters": {"rope_type": "default", "rope_theta": NAN}}),
    ("factor", rope(factor=NAN)),
    ("factor", rope(factor=INFINITY)),
    ("factor", rope(factor=-1)),
    ("factor", rope(factor="2")),
    ("factor", {"rope_scaling": {"rope_type": "linear", "factor": [2]}}),
    ("beta_fast", rope(beta_fast=NAN)),
    ("attention_factor", rope(attention_factor=0)),
    ("mscale", rope(mscale=["x"], mscale_all_dim=1)),
    ("mscale_all_dim", rope(mscale=1, mscale_all_dim={})),
    ("mscale must be a number from 0 and", rope(mscale=-1)),
    ("truncate", rope(truncate="no")),
    ("original_max_position_embeddings", rope(original_max_position_embeddings=1.5)),
    ("original_max_position_embeddings", rope(original_max_position_embeddings=0)),
    ("original_max_position_embeddings", {**rope(), "original_max_position_embeddings": [1]}),
    ("high_freq_factor", {"rope_scaling": LLAMA3}),
    ("head_dim", {"head_dim": 2, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}),
    ("layer_types", {"layer_types": "full_attention"}),
    ("layer_types", {"layer_types": 4}),
    ("layer_types", {"layer_types": ["full_attention"] * 10**5}),
    ("tie_word_embeddings", {"tie_word_embeddings": 1}),
    ("attention_bias", {"attention_bias": "false"}),
    ("hidden_act", {"hidden_act": None}),
    ("eos_token_id", {"eos_token_id": [2, True]}),
    ("eos_token_id", {"eos_token_id": -1}),
    ("eos_token_id 128 is outside the vocabulary of vocab_size=128", {"eos_token_id": [2, 128]}),
    ("bos_token_id", {"bos_token_id": 2.0}),
    ("bos_token_id", {"bos_token_id": 2**31}),
    ("sliding_window", {"sliding_window": -1}),
    ("mlp_only_layers", {"mlp_only_layers": 3}),
    ("mlp_only_layers", {"mlp_only_layers": ["3"]}),
    ("num_experts", {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 10**9}),
    ("num_experts", {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": "8"}),
    (
        "num_experts_per_tok",
        {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 8, "num_experts_per_tok": 9},
    ),
    ("n_group", {"architectures": ["DeepseekV3ForCausalLM"], "n_group": 7}),
    (
        "routed_scaling_factor",
        {"architectures": ["DeepseekV3ForCausalLM"], "routed_scaling_factor": NAN},
    ),
    ("kv_lora_rank", {"architectures": ["DeepseekV3ForCausalLM"], "kv_lora_rank": 10**9}),
    ("quant_method", {"quantization_config": "fp8"}),
    ("rope_type", {"rope_scaling": [1, 2]}),
    ("dtype", {"torch_dtype": {"a": 1}}),
    ("dtype", {"torch_dtype": ["bfloat16"]}),
]


@pytest.mark.parametrize(("key", "changes"), HOSTILE)
def test_a_hostile_value_is_named(tmp_path, key, changes):
    write(tmp_path, {**LLAMA, **BASE, **changes})
    with pytest.raises((ModelConfigError, UnsupportedModelError)) as caught:
        read_model_config(tmp_path)
    message = str(caught.value)
    assert key in message
    assert "config.json" in message
    assert len(message) < 700


@pytest.mark.parametrize(
    "architecture", ["Llama", "Qwen2", "Qwen2Moe", "DeepseekV3", "Qwen3Next", "Qwen3_5"]
)
def test_no_value_of_any_key_ends_in_another_exception(tmp_path, architecture):
    """Every key that is read, with every kind of value, in the most different architectures."""
    deep: list[Any] = []
    for _ in range(400):
        deep = [deep]
    values: list[Any] = [None, True, 0, 1, -1, 7, 10**18, 10**400, 0.5, NAN, INFINITY, -INFINITY]
    values += ["", "x", "\ud800", "x" * 10**4, [], [1], ["x"], [None], {}, {"a": 1}, deep]
    keys = [*FIELDS, "eos_token_id", "bos_token_id", "is_encoder_decoder", "vision_config"]
    keys += ["attn_logit_softcapping", "compression_config"]
    contents = [{key: value} for key in keys for value in values]
    # Read in one place for all architectures.
    for key in ROPE_FIELDS if architecture in ("Llama", "DeepseekV3") else ():
        for style in ("yarn", "llama3", "dynamic"):
            base = {"factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
            settings = ({"rope_type": style, **base, key: value} for value in values)
            contents += [{"rope_scaling": each} for each in settings]
    experts = {"num_experts": 8} if "Moe" in architecture or "Next" in architecture else {}
    base = {"architectures": [f"{architecture}ForCausalLM"], **BASE, **experts}
    for changes in contents:
        write(tmp_path, {**base, **changes})
        try:
            read_model_config(tmp_path)
        except (ModelConfigError, UnsupportedModelError) as error:
            assert len(str(error)) < 3000, changes  # it may list all architectures
            str(error).encode()


@pytest.mark.parametrize(
    "content",
    [b"[" * 10**5, b'{"a": ' * 10**5, b"\xff\xfe", b"", b'{"hidden_size": ' + b"9" * 10**4 + b"}"],
)
def test_a_file_that_is_no_json_is_named(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelConfigError, match=r"cannot read .*config\.json"):
        read_model_config(tmp_path)


def test_a_byte_order_mark_is_accepted(tmp_path):
    content = json.dumps({**LLAMA, **BASE}).encode("utf-8-sig")
    (tmp_path / "config.json").write_bytes(content)
    assert read_model_config(tmp_path).hidden_size == 64


def test_end_ids_name_the_file_that_has_them(tmp_path):
    write(tmp_path, {**LLAMA, **BASE})
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": true}')
    with pytest.raises(ModelConfigError, match=r"generation_config\.json: eos_token_id must be"):
        read_model_config(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 1000000}')
    words = (
        r"generation_config\.json: eos_token_id 1000000 is outside the vocabulary of vocab_size="
    )
    with pytest.raises(ModelConfigError, match=words):
        read_model_config(tmp_path)


@pytest.mark.parametrize("changes", [changes for _, changes in HOSTILE[:12]])
def test_nothing_is_allocated_for_what_is_refused(tmp_path, changes, monkeypatch):
    def refuse(*arguments: Any) -> None:
        raise AssertionError(f"memory was taken: {arguments}")

    monkeypatch.setattr(layer_options, "empty_on", refuse)
    write(tmp_path, {**LLAMA, **BASE, **changes})
    with pytest.raises((ModelFilesError, UnsupportedModelError)):
        open_model(tmp_path, load_format="dummy")
