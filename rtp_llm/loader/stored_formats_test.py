# SPDX-License-Identifier: Apache-2.0
"""What is wrong with an FP8 checkpoint is named, and what becomes of a good one is told."""

from __future__ import annotations

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from rtp_llm.device import resolve_device
from rtp_llm.device.cuda import CudaDevice
from rtp_llm.layers.weights.fp8_targets import DequantizingTarget
from rtp_llm.layers.weights.stored_format import FloatFormat
from rtp_llm.loader import WeightError, explain, load_model
from rtp_llm.loader.stored_formats import log_dequantized
from rtp_llm.models.config import UnsupportedModelError
from rtp_llm.testing.fake_torch import FakeTorch
from rtp_llm.testing.models.fp8_checkpoints import store_as_fp8
from rtp_llm.testing.models.open_model import model_settings, open_model
from rtp_llm.testing.models.stored_checkpoints import PACKINGS, store_packed
from rtp_llm.testing.models.transformers_models import save_model

NAME = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "fp8").mkdir()
    save_model(tmp_path / "fp8", "qwen3", hidden_size=160)
    store_as_fp8(tmp_path / "fp8", dtype=torch.bfloat16)
    return tmp_path / "fp8"


def load(folder, dtype=torch.bfloat16, **settings):
    return open_model(folder, dtype, **settings)


def change(folder, **tensors):
    """Write other tensors into the checkpoint; None takes one away."""
    weights = {**load_file(folder / "model.safetensors"), **tensors}
    kept = {name: tensor for name, tensor in weights.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({f"{NAME}_scale_inv": None}, f"missing: {NAME}_scale_inv"),
        ({NAME: torch.ones(160, 112)}, f"not known to this architecture: {NAME}_scale_inv"),
        (
            {f"{NAME}_scale_inv": torch.ones(1, 2)},
            rf"wrongly shaped: {NAME}_scale_inv is \[1, 2\], not \[2, 1\]",
        ),
        (
            {NAME: torch.full((160, 112), torch.nan).to(torch.float8_e4m3fn)},
            rf"{NAME} \(model.safetensors\): a weight is not a number",
        ),
        (
            {f"{NAME}_scale_inv": torch.full((2, 1), 1e3)},
            rf"{NAME} \(model.safetensors\): values beyond the range of float16",
        ),
    ],
)
def test_wrong_weights_are_named(folder, tensors, message):
    change(folder, **tensors)
    with pytest.raises(WeightError, match=message):
        load(folder, torch.float16)


def test_blocks_without_a_word_in_the_config_are_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    message = r"quantized weights without a format is not .*float8_e4m3fn, but config\.json has no"
    for opens in (load_model, explain):
        with pytest.raises(UnsupportedModelError, match=message):
            opens(folder, device=resolve_device("cpu"), settings=model_settings(torch.bfloat16))


def test_weights_of_excluded_modules_are_named_with_their_type(tmp_path):
    (tmp_path / "int8").mkdir()
    save_model(tmp_path / "int8", "qwen3", num_hidden_layers=2)
    store_packed(tmp_path / "int8", PACKINGS["w8a8"])
    config = json.loads((tmp_path / "int8" / "config.json").read_text())
    config["quantization_config"]["ignore"] += ["lm_head", "model.layers.1.mlp"]
    (tmp_path / "int8" / "config.json").write_text(json.dumps(config))
    message = r"1\.mlp\.down_proj\.weight and 2 more: int8, but config\.json excludes the module"
    for opens in (load_model, explain):
        with pytest.raises(UnsupportedModelError, match=message):
            opens(
                tmp_path / "int8",
                device=resolve_device("cpu"),
                settings=model_settings(torch.float32),
            )


def test_blocks_that_several_parts_would_share_are_refused(tmp_path):
    (tmp_path / "fp8").mkdir()
    save_model(tmp_path / "fp8", "qwen3_next")
    store_as_fp8(tmp_path / "fp8", dtype=torch.bfloat16)
    message = r"FP8 blocks of several parts is not .*in_proj_qkvz has 16 rows of q at a time"
    settings = model_settings(torch.bfloat16)
    for opens in (load_model, explain):
        with pytest.raises(UnsupportedModelError, match=message):
            opens(tmp_path / "fp8", device=resolve_device("cpu"), settings=settings)


def test_settings_that_do_not_go_with_it_are_refused(folder, monkeypatch):
    with pytest.raises(UnsupportedModelError, match=r"quantized twice .*Leave --quantization out"):
        load(folder, quantization="int8")
    with pytest.raises(UnsupportedModelError, match="fp8_products is not supported on cpu"):
        load(folder, quantization="fp8")
    device = resolve_device("cpu")
    monkeypatch.setattr(type(device), "refused", {})
    with pytest.raises(UnsupportedModelError, match=r"fp8 with another dtype .*--dtype float32"):
        load(folder, torch.float32, quantization="fp8")


def test_gpus_round_to_four_bits_for_activations_in_sixteen(tmp_path):
    (tmp_path / "floats").mkdir()
    save_model(tmp_path / "floats", "qwen3")
    gpu = CudaDevice(FakeTorch(cuda=1), {})
    settings = model_settings(torch.float32, quantization="int4")
    with pytest.raises(UnsupportedModelError, match=r"int4_weights in float32 is not supported on"):
        explain(tmp_path / "floats", device=gpu, settings=settings)


class Int8Rows(FloatFormat):
    title = "FP8-like integers"
    marker = ("weight", torch.int8)


class HoldsInt8(nn.Module):
    def checkpoint_targets(self, path):
        weight = torch.empty(4, 4, dtype=torch.bfloat16)
        yield path, DequantizingTarget(weight, torch.ones(4), lambda rows, *_: rows, Int8Rows())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (load, "FP8 blocks become .* no kernels for FP8 products"),
        (lambda folder: HoldsInt8(), "FP8-like integers become .* no layer takes them as they are"),
    ],
)
def test_the_format_says_why_weights_become_floats(folder, make, words, caplog):
    model = make(folder)
    caplog.clear()
    log_dequantized(model, torch.bfloat16, resolve_device("cpu"))
    assert re.search(words, caplog.text)


def test_the_explanation_says_what_becomes_of_them(folder, monkeypatch):
    device = resolve_device("cpu")
    weights = load_file(folder / "model.safetensors")
    numbers = sum(t.numel() for t in weights.values() if t.dtype is torch.float8_e4m3fn)
    size = f"{numbers / 2**20:.1f} MiB of FP8 blocks"
    text = explain(folder, device=device, settings=model_settings(torch.bfloat16))
    assert f"kept as bfloat16, {size} become {numbers / 2**19:.1f} MiB of bfloat16" in text
    assert "while loading: there are no kernels for FP8 products" in text
    text = explain(folder, device=device, settings=model_settings(torch.float32))
    assert "while loading: products of 8-bit floats give bfloat16 only; see --dtype" in text
    monkeypatch.setattr(type(device), "refused", {"tensor_parallel": "one"})
    assert f"kept as bfloat16, {size} as they are" in explain(
        folder, device=device, settings=model_settings(torch.bfloat16)
    )
