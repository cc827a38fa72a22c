# SPDX-License-Identifier: Apache-2.0
"""Tests of config.json of Granite 4: what is read, and what is refused by name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.models.config import ModelConfig, ModelConfigError
from rtp_llm.models.config_reader import read_model_config

BASE = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "shared_intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_local_experts": 0,
    "mamba_n_heads": 8,
    "mamba_d_state": 32,
    "layers_block_type": ["mamba", "attention", "mamba"],
    "position_embedding_type": "nope",
}


def read(folder: Path, **changes: Any) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(BASE | changes))
    return read_model_config(folder)


def test_keys_as_published(tmp_path: Path) -> None:
    multipliers = {"embedding_multiplier": 12, "residual_multiplier": 0.25, "logits_scaling": 8}
    config = read(tmp_path, **multipliers)
    assert config.linear_layers == (True, False, True) and config.rope.style == "none"
    assert (config.embedding_scale, config.logit_scale) == (48.0, 1 / 8)
    assert config.rms_norm_eps == 1e-6 * 16 and config.intermediate_size == 80
    net = config.mamba2
    assert net is not None and config.moe is None
    assert (net.head_dim, net.num_groups, net.norm_eps, net.conv_bias) == (16, 1, 1e-6, True)
    assert net.dt_limits == (0.0, math.inf)
    for written in ([0.5, math.inf], [0.5, {"__float__": "Infinity"}]):
        net = read(tmp_path, time_step_limit=written).mamba2
        assert net is not None and net.dt_limits == (0.5, math.inf)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers_block_type": ["mamba"]}, "layers_block_type must be a list of 3 entries"),
        ({"layers_block_type": ["mamba", "x", "mamba"]}, "mamba or attention in each entry"),
        ({"mamba_n_heads": 6}, "mamba_n_heads must be a divisor of the 128 channels"),
        ({"mamba_n_groups": 3}, "mamba_n_heads must be a multiple of mamba_n_groups"),
        ({"mamba_n_heads": 32}, "mamba_d_head must be a multiple of 8"),
        ({"mamba_d_head": 8}, "mamba_d_head must be 16"),
        ({"mamba_d_conv": 5}, "mamba_d_conv must be at most 4"),
        ({"mamba_d_state": 520}, "mamba_d_state must be a multiple of 8 up to 512"),
        ({"hidden_act": "gelu"}, "hidden_act must be silu"),
        ({"position_embedding_type": "alibi"}, "position_embedding_type must be nope or rope"),
        ({"time_step_limit": [1, 0.5]}, "time_step_limit must be two numbers"),
        ({"time_step_limit": 3}, "time_step_limit must be a list"),
        ({"residual_multiplier": 0}, "residual_multiplier must be a number greater than 0"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigError, match=message):
        read(tmp_path, **changes)
