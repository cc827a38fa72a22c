# SPDX-License-Identifier: Apache-2.0
"""Fields that change the arithmetic: refused by name where they are not read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.models.config import ModelConfig, UnsupportedModelError
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.models.family_fields import FAMILY_FIELDS
from rtp_llm.models.registry import known_architectures

SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FOUND: dict[str, Any] = {
    "attention_chunk_size": 8192,
    "attn_temperature_tuning": True,
    "no_rope_layers": [1, 1, 1, 0],
    "parallel_attn": True,
    "qk_layernorm": True,
    "use_parallel_residual": True,
    "use_qk_norm": True,
}


def read(folder: Path, architecture: str = "LlamaForCausalLM", **changes: Any) -> ModelConfig:
    values = {"architectures": [architecture], **SIZES, **changes}
    (folder / "config.json").write_text(json.dumps(values))
    return read_model_config(folder)


@pytest.mark.parametrize("key", FAMILY_FIELDS)
def test_a_field_that_is_not_read_is_refused_by_name(tmp_path: Path, key: str) -> None:
    message = rf"^LlamaForCausalLM: field of another family .*\(config\.json: {key} "
    with pytest.raises(UnsupportedModelError, match=message):
        read(tmp_path, **{key: FOUND.get(key, 0.5)})
    for value in (None, FAMILY_FIELDS[key].neutral):
        changes: dict[str, Any] = {key: value}
        read(tmp_path, **changes)


def test_rope_settings_are_searched_too(tmp_path: Path) -> None:
    rope = {"rope_type": "linear", "factor": 2.0, "llama_4_scaling_beta": 0.1}
    for name in ("rope_scaling", "rope_parameters"):
        changes: dict[str, Any] = {name: rope}
        with pytest.raises(UnsupportedModelError, match=r"config\.json: llama_4_scaling_beta 0\.1"):
            read(tmp_path, **changes)
    rope["original_max_position_embeddings"] = 256
    assert read(tmp_path, "Ministral3ForCausalLM", rope_scaling=rope).query_scaling is not None


def test_lists_in_which_all_layers_rotate_change_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, no_rope_layers=[1, 1, 1, 1]).no_rope_layers == frozenset()
    left_out = read(tmp_path, "SmolLM3ForCausalLM", no_rope_layers=[1, 1, 1, 0]).no_rope_layers
    assert set(left_out) == {3}


def test_families_that_read_a_field_may_have_it(tmp_path: Path) -> None:
    granite = read(tmp_path, "GraniteForCausalLM", logits_scaling=4.0, attention_multiplier=0.5)
    assert (granite.logit_scale, granite.attention_scale) == (0.25, 0.5)
    for key, field in FAMILY_FIELDS.items():
        for family in field.families:
            assert any(name.startswith(family) for name in known_architectures()), (key, family)
