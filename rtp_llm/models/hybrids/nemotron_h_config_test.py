# SPDX-License-Identifier: Apache-2.0
"""Tests of config.json of Nemotron-H: what is read, and what is refused by name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from transformers import NemotronHConfig

from rtp_llm.models.config import ModelConfig, ModelConfigError
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.models.refusals import UnsupportedModelError

BASE = {
    "architectures": ["NemotronHForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "head_dim": 16,
    "layer_norm_epsilon": 1e-4,
    "mamba_num_heads": 16,
    "mamba_head_dim": 24,
    "n_routed_experts": 8,
    "ssm_state_size": 32,
    "time_step_limit": [0.0, math.inf],
    "hybrid_override_pattern": "M-*M",
}
LISTED = ["linear_attention", "mlp", "full_attention", "linear_attention"]


def read(folder: Path, **changes: Any) -> ModelConfig:
    values = {key: value for key, value in (BASE | changes).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(values))
    return read_model_config(folder)


def test_patterns_and_lists_say_the_same(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert config.linear_layers == (True, False, False, True) and config.mlp_layers == {1}
    assert config.rope.style == "none" and config.rms_norm_eps == 1e-4 and config.moe is None
    net = config.mamba2
    assert net is not None and net.inner == 16 * 24 and net.dt_limits == (0.0, math.inf)
    assert (net.num_groups, net.kernel_size, net.norm_eps, net.proj_bias) == (8, 4, 1e-4, False)
    without = {"hybrid_override_pattern": None, "num_hidden_layers": None}
    assert read(tmp_path, **without, layers_block_type=LISTED) == config
    older = ["mamba", "mlp", "attention", "mamba"]
    assert read(tmp_path, layers_block_type=older, hybrid_override_pattern="M") == config


def test_keys_that_are_left_out(tmp_path: Path) -> None:
    """They mean what transformers' config class says."""
    theirs = NemotronHConfig(layers_block_type=LISTED)
    needed = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads")
    values = {key: getattr(theirs, key) for key in needed}
    values |= {"architectures": BASE["architectures"], "layers_block_type": LISTED}
    (tmp_path / "config.json").write_text(json.dumps(values))
    config = read_model_config(tmp_path)
    net = config.mamba2
    assert net is not None and not config.mlp_bias and not config.tie_word_embeddings
    assert (net.num_heads, net.head_dim) == (theirs.mamba_num_heads, theirs.mamba_head_dim)
    assert (net.num_groups, net.state_size) == (theirs.n_groups, theirs.ssm_state_size)
    assert (net.kernel_size, net.conv_bias) == (theirs.conv_kernel, theirs.use_conv_bias)
    assert (net.proj_bias, net.dt_limits) == (theirs.use_bias, (0.0, math.inf))
    assert config.rms_norm_eps == net.norm_eps == theirs.layer_norm_epsilon
    assert (config.num_kv_heads, config.head_dim) == (theirs.num_key_value_heads, theirs.head_dim)
    assert config.max_position_embeddings == theirs.max_position_embeddings
    assert config.hidden_act == theirs.mlp_hidden_act
    assert (config.bos_token_id, config.eos_token_ids) == (theirs.bos_token_id, (2,))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hybrid_override_pattern": "M-*"}, "hybrid_override_pattern must be a list of 4 entries"),
        ({"hybrid_override_pattern": "M-*x"}, "hybrid_override_pattern must be of linear_"),
        ({"hybrid_override_pattern": "----"}, "such that some layer has attention or Mamba-2"),
        ({"hybrid_override_pattern": None}, "hybrid_override_pattern must be a text"),
        ({"layers_block_type": ["M", "M", "M", "M"]}, "layers_block_type must be of linear_"),
        ({"mamba_num_heads": 12}, "mamba_num_heads must be a multiple of n_groups"),
        ({"mamba_head_dim": 12}, "mamba_head_dim must be a multiple of 8"),
        ({"mamba_hidden_act": "gelu"}, "mamba_hidden_act must be silu"),
        ({"mlp_hidden_act": "silu"}, "mlp_hidden_act must be relu2"),
        ({"attention_bias": True}, "attention_bias must be false"),
        ({"time_step_limit": [1.0, 0.1]}, "time_step_limit must be two numbers"),
        ({"hybrid_override_pattern": "M*" * 3000}, "must be a list of at most 4096 layers"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigError, match=message):
        read(tmp_path, **changes)


def test_layers_of_experts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"hybrid_override_pattern has .* no gate"):
        read(tmp_path, hybrid_override_pattern="ME*-")
