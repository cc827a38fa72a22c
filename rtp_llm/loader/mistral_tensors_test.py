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
from rtp_llm.loader.row_changes import HalvesInTurn
from rtp_llm.models.config import ModelConfig, UnsupportedModelError
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.models.raw_config import ModelConfigError
from rtp_llm.testing.models.contiguous_runner import ContiguousRunner
from rtp_llm.testing.models.mistral_layout import store_as_mistral
from rtp_llm.testing.models.open_model import model_settings, open_model
from rtp_llm.testing.models.transformers_models import random_prompt, save_model

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


def test_ministral_3(tmp_path: Path) -> None:
    """Stretched positions, and queries that grow with theirs."""
    folder = tmp_path / "theirs"
    save_model(folder, "ministral3")
    length = {"original_max_position_embeddings": 16}
    yarn = {"factor": 4.0, "beta": 32.0, "alpha": 1.0, "apply_scale": False, **length}
    made = store_as_mistral(folder, yarn=yarn, llama_4_scaling={"beta": 0.3, **length})
    prompt = random_prompt(40)
    expected, found = (
        ContiguousRunner(open_model(each), 1, 64).prefill(prompt) for each in (folder, made)
    )
    torch.testing.assert_close(found, expected)


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


WQ, Q_PROJ = "layers.0.attention.wq.", "model.layers.0.self_attn.q_proj."


def entries_of(folder: Path, head_dim: int, tensors: dict[str, torch.Tensor]) -> Checkpoint:
    (folder / "params.json").write_text(json.dumps({**PARAMS, "head_dim": head_dim}))
    save_file(tensors, folder / "consolidated.safetensors")
    return Checkpoint.open(folder)


def floats(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def words(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


@pytest.mark.parametrize(
    ("head_dim", "tensors", "turned"),
    [
        (  # 128 heads: as many blocks as a head has channels
            128,
            {"weight": floats(128 * 128, 4), "qscale_weight": floats(128, 1)},
            ["weight"],
        ),
        (64, {"weight": floats(64 * 128, 4), "weight_scale_inv": floats(64, 1)}, ["weight"]),
        (  # as many columns as rows
            4,
            {
                "weight_packed": words(16, 2),
                "weight_g_idx": words(16),
                "weight_shape": words(2),
                "weight_scale": floats(16, 1),
                "weight_zero_point": words(16, 1),
                "bias": floats(16),
                "input_scale": floats(4),
            },
            ["bias", "weight_packed", "weight_scale", "weight_zero_point"],
        ),
        (256, {"weight_packed": words(256, 2), "weight_shape": words(2)}, ["weight_packed"]),
    ],
    ids=["blocks of 128", "blocks of 64", "groups", "shape"],
)
def test_only_rows_of_heads_change_places(
    tmp_path: Path, head_dim: int, tensors: dict[str, torch.Tensor], turned: list[str]
) -> None:
    stored = {f"{WQ}{name}": each for name, each in tensors.items()}
    found = entries_of(tmp_path, head_dim, stored).tensors
    assert len(found) == len(tensors)
    changes = {name.removeprefix(Q_PROJ): each.change for name, each in found.items()}
    assert sorted(name for name, change in changes.items() if change) == turned
    assert all(changes[name] == HalvesInTurn(head_dim) for name in turned)


@pytest.mark.parametrize(
    ("head_dim", "tensors"),
    [
        (256, {"weight": floats(512, 4), "qscale_weight": floats(4, 1)}),
        (4, {"weight_packed": words(32, 2), "weight_zero_point": words(4, 1)}),
    ],
    ids=["blocks", "packed rows"],
)
def test_numbers_of_parts_of_heads_are_refused(
    tmp_path: Path, head_dim: int, tensors: dict[str, torch.Tensor]
) -> None:
    stored = {f"{WQ}{name}": each for name, each in tensors.items()}
    with pytest.raises(CheckpointError, match=f"rows of several heads of {head_dim}"):
        entries_of(tmp_path, head_dim, stored)


def test_tensors_of_the_same_name_are_refused(tmp_path: Path) -> None:
    twice = {f"{WQ}{name}": floats() for name in ("qscale_weight", "weight_scale")}
    with pytest.raises(CheckpointError, match=r"self_attn\.q_proj\.weight_scale once more"):
        entries_of(tmp_path, 16, twice)
