# SPDX-License-Identifier: Apache-2.0
"""Scales of cached keys and values: under which names checkpoints have them, and what they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rtp_llm.attention import AttentionConfig
from rtp_llm.attention.paged import PagedAttentionBackend
from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.device.capabilities import HOST
from rtp_llm.device.cpu import CpuDevice
from rtp_llm.layers import AttentionShape, LayerOptions
from rtp_llm.loader import WeightError, explain, load_model
from rtp_llm.loader.cache_scales import cache_scales
from rtp_llm.loader.checkpoint import Checkpoint, CheckpointError
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.testing.models.open_model import model_settings
from rtp_llm.testing.models.transformers_models import save_model

PATH = "model.layers.{}.self_attn."
FP8_SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
ONLY_CACHE = {"quant_method": "compressed-tensors", "kv_cache_scheme": FP8_SCHEME}


def with_scales(folder: Path, scales: dict[str, Tensor], config: dict[str, Any]) -> Path:
    """A tiny model of floats whose first layer has `scales`."""
    save_model(folder, "llama")
    tensors = load_file(folder / "model.safetensors")
    tensors |= {PATH.format(0) + name: each for name, each in scales.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **config}))
    return folder


def found(folder: Path) -> dict[str, tuple[float, float]]:
    return cache_scales(read_model_config(folder), Checkpoint.open(folder))


@pytest.mark.parametrize(
    ("scales", "pair"),
    [
        ({"k_scale": [0.5], "v_scale": [0.25], "q_scale": [3.0]}, (0.5, 0.25)),
        ({"k_proj.k_scale": 0.5, "v_proj.v_scale": 0.25}, (0.5, 0.25)),  # ModelOpt
        ({"attn.k_scale": 0.5, "attn.v_scale": 0.25}, (0.5, 0.25)),
        ({"k_proj.output_scale": 0.5, "v_proj.output_scale": 0.25}, (0.5, 0.25)),
        ({"kv_scale": 0.5}, (0.5, 0.5)),  # AutoFP8
        ({"k_scale": 0.5, "v_scale": -1.0}, (0.5, 0.5)),
        ({"k_scale": [[[0.5]], [[0.125]]], "v_scale": [[[0.25]], [[0.5]]]}, (0.5, 0.5)),
        ({"k_scale": -1.0, "v_scale": 0.0}, None),  # not calibrated
    ],
    ids=str,
)
def test_names(tmp_path: Path, scales: dict[str, Any], pair: tuple[float, float] | None) -> None:
    tensors = {name: torch.tensor(each) for name, each in scales.items()}
    expected = {} if pair is None else {PATH.format(0): pair}
    assert found(with_scales(tmp_path / "model", tensors, {})) == expected


def test_names_in_layers_of_one_mixer(tmp_path: Path) -> None:
    save_model(tmp_path, "nemotron_h")
    tensors, path = load_file(tmp_path / "model.safetensors"), "layers.2.mixer."
    for name, scale in (("k_proj.k_scale", 0.5), ("v_proj.v_scale", 0.25), ("q_scale", 3.0)):
        tensors[f"backbone.{path}{name}"] = torch.tensor(scale)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, "quantization_config": ONLY_CACHE}))
    load_model(tmp_path, device=CpuDevice(), settings=model_settings(torch.float32))
    checkpoint = Checkpoint.open(tmp_path).renamed(("backbone.",))
    scales = cache_scales(read_model_config(tmp_path), checkpoint)
    assert scales == {f"model.{path}": (0.5, 0.25)}


def test_those_of_queries_and_probabilities_have_no_use(tmp_path: Path) -> None:
    attention = ("q_scale", "attn.q_scale", "q_proj.q_scale", "q_proj.output_scale")
    attention += ("prob_scale", "attn.prob_scale", "prob_output_scale")
    scales = {name: torch.tensor([0.5]) for name in attention}
    folder = with_scales(tmp_path / "model", scales, {"quantization_config": ONLY_CACHE})
    load_model(folder, device=CpuDevice(), settings=model_settings(torch.float32))
    assert found(folder) == {}
    text = explain(folder, device=CpuDevice(), settings=model_settings(torch.float32))
    assert "k_scale" not in text
    with_scales(tmp_path / "model", {"prob_norm": torch.tensor([0.5])}, {})
    with pytest.raises(WeightError, match=r"not known to this architecture: .*prob_norm"):
        load_model(folder, device=CpuDevice(), settings=model_settings(torch.float32))


def test_far_more_numbers_than_heads_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = with_scales(tmp_path / "model", {"k_scale": torch.ones(2**16)}, {})
    assert found(folder) == {PATH.format(0): (1.0, 1.0)}
    with_scales(folder, {"k_scale": torch.ones(2, 2**15 + 1)}, {})
    monkeypatch.setattr("rtp_llm.loader.cache_scales.read_numbers", pytest.fail)
    with pytest.raises(CheckpointError, match=r"k_scale \[2, 32769\] has more than 65536 numbers"):
        found(folder)


MODELOPT = {"quant_method": "modelopt", "quant_algo": None}


@pytest.mark.parametrize(
    ("config", "used"),
    [
        (ONLY_CACHE, True),
        ({**ONLY_CACHE, "kv_cache_scheme": {**FP8_SCHEME, "num_bits": 4}}, False),
        ({**MODELOPT, "kv_cache_quant_algo": "FP8"}, True),
        ({**MODELOPT, "kv_cache_quant_algo": "NVFP4"}, False),
    ],
    ids=str,
)
def test_only_those_of_fp8_are_used(tmp_path: Path, config: dict[str, Any], used: bool) -> None:
    scales = {"k_scale": torch.tensor([0.5]), "v_scale": torch.tensor([0.25])}
    folder = with_scales(tmp_path / "model", scales, {"quantization_config": config})
    assert bool(found(folder)) == used
    # A cache in the type of the activations does not need them.
    load_model(folder, device=CpuDevice(), settings=model_settings(torch.float32))
    text = explain(folder, device=CpuDevice(), settings=model_settings(torch.float32))
    assert ("k_scale and v_scale are for --kv-cache-dtype fp8_e4m3" in text) == used
    assert ("k_scale and v_scale are not used: the checkpoint means them" in text) != used


def test_layers_hand_them_to_their_backend() -> None:
    config = AttentionConfig(HOST, torch.float32, torch.float32, 4, 2, 16, 16)
    backend, path = PagedAttentionBackend(config), PATH.format(3)
    options = LayerOptions(ModelSettings(dtype="float32"), torch.device("cpu"), path=path)
    shape = AttentionShape(64, 4, 2, 16)
    shape.make(3, backend, options)
    assert not backend._scales
    given = LayerOptions(
        options.settings, options.device, path=path, cache_scales={path: (0.5, 0.25)}
    )
    shape.make(3, backend, given)
    kept = backend._scales[3]
    assert (kept.key, kept.keys.item(), kept.values.item()) == (0.5, 0.5, 0.25)
