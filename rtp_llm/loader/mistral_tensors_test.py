# SPDX-License-Identifier: Apache-2.0
"""Folders in Mistral's own layout: the models are those of transformers' folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rtp_llm.device.cpu import CpuDevice
from rtp_llm.loader import explain, load_model
from rtp_llm.loader.cache_scales import cache_scales
from rtp_llm.loader.checkpoint import Checkpoint, CheckpointError
from rtp_llm.models.config import ModelConfig, UnsupportedModelError
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.models.raw_config import ModelConfigError
from rtp_llm.testing.models.mistral_layout import store_as_mistral
from rtp_llm.testing.models.open_model import model_settings
from rtp_llm.testing.models.transformers_models import save_model

SETTINGS = model_settings(torch.float32)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return dict(load_model(folder, device=CpuDevice(), settings=SETTINGS).state_dict())


@pytest.mark.parametrize(
    ("kind", "fp8"), [("mistral", False), ("mistral", True), ("mixtral", False)], ids=str
)
def test_it_is_the_model_of_transformers(tmp_path: Path, kind: str, fp8: bool) -> None:
    folder = tmp_path / "model"
    save_model(folder, kind, sliding_window=None)
    made = store_as_mistral(folder, fp8=fp8)
    expected, actual = weights_of(folder), weights_of(made)
    assert expected.keys() == actual.keys()
    assert all(torch.equal(weight, actual[name]) for name, weight in expected.items())
    ours, wanted = read_model_config(made), read_model_config(folder)
    for each in ("hidden_size", "num_layers", "rope", "rms_norm_eps", "layer_windows", "moe"):
        assert getattr(ours, each) == getattr(wanted, each)
    assert ("MiB of FP8 tensors" in explain(made, device=CpuDevice(), settings=SETTINGS)) == fp8


def test_several_files_and_scales_of_the_cache(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_model(folder, "mistral")
    made = store_as_mistral(folder)
    tensors = load_file(made / "consolidated.safetensors")
    (made / "consolidated.safetensors").unlink()
    attention = "layers.1.attention."
    tensors[f"{attention}k_fake_quantizer.qscale_act"] = torch.tensor(0.5)
    tensors[f"{attention}v_fake_quantizer.qscale_act"] = torch.tensor(0.25)
    names = sorted(tensors)
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = made / f"consolidated-0000{number}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, file)
    expected, actual = weights_of(folder), weights_of(made)
    assert all(torch.equal(weight, actual[name]) for name, weight in expected.items())
    config: ModelConfig = read_model_config(made)
    found = cache_scales(config, Checkpoint.open(made))
    assert found == {"model.layers.1.self_attn.": (0.5, 0.25)}


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({"llama_4_scaling": {"beta": 0.1}}, "llama_4_scaling"),
        ({"moe": {"num_experts": 8, "num_shared_experts": 1}}, "num_shared_experts"),
        ({"model_type": "mamba"}, "mamba"),
        ({"quantization": {"qformat_weight": "int3"}}, "int3"),
        ({"sliding_window": [None, 4096]}, "sliding_window"),
        ({"yarn": {"factor": 4, "gamma": 1}}, "gamma"),
    ],
    ids=str,
)
def test_what_is_refused(tmp_path: Path, more: dict[str, Any], found: str) -> None:
    (tmp_path / "params.json").write_text(json.dumps({**PARAMS, **more}))
    with pytest.raises(UnsupportedModelError, match=f"Mistral's own layout.*{found}"):
        read_model_config(tmp_path)


PARAMS = {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 96, "vocab_size": 50}


def test_yarn_and_defaults(tmp_path: Path) -> None:
    yarn = {
        "factor": 8,
        "original_max_position_embeddings": 32,
        "beta": 16,
        "alpha": 2,
        "apply_scale": False,
    }
    (tmp_path / "params.json").write_text(json.dumps({**PARAMS, "yarn": yarn}))
    rope = read_model_config(tmp_path).rope
    assert (rope.style, rope.factor, rope.beta_fast, rope.beta_slow) == ("yarn", 8, 16, 2)
    assert (rope.max_position, rope.attention_factor, rope.theta) == (32, 1.0, 10000.0)


def test_broken_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text(json.dumps({"dim": 64}))
    with pytest.raises(ModelConfigError, match=r"params\.json: n_layers is missing"):
        read_model_config(tmp_path)
    (tmp_path / "params.json").write_text(json.dumps({**PARAMS, "head_dim": 96}))
    name = "layers.0.attention.wq.qscale_weight"
    save_file({name: torch.ones(3, 2)}, tmp_path / "consolidated.safetensors")
    with pytest.raises(CheckpointError, match="rows of several heads of 96"):
        Checkpoint.open(tmp_path)
