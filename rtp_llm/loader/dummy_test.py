# SPDX-License-Identifier: Apache-2.0
"""Tests of random weights: every parameter is drawn, nothing is read."""

from __future__ import annotations

import json

import pytest
import torch

from rtp_llm.loader import CheckpointError
from rtp_llm.testing.fp8_products import multiply_fp8_on_cpu
from rtp_llm.testing.loader.small_checkpoints import CONFIG
from rtp_llm.testing.models.open_model import open_model as load


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_a_folder_without_weights_is_enough_when_they_are_drawn(folder):
    model = load(folder, load_format="dummy")
    for name, parameter in model.named_parameters():
        assert parameter.isfinite().all(), name
        if "norm" in name:
            assert (parameter == 1).all(), name
        else:
            assert 0.01 < parameter.std() < 0.03, name
    with pytest.raises(CheckpointError):
        load(folder)


def test_biases_are_zero(folder):
    (folder / "config.json").write_text(
        json.dumps({**CONFIG, "architectures": ["Qwen2ForCausalLM"]})
    )
    model = load(folder, load_format="dummy")
    assert (model.model.layers[1].self_attn.qkv_proj.bias == 0).all()


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_the_same_weights_every_time(folder, quantization):
    models = [load(folder, load_format="dummy", quantization=quantization) for _ in range(2)]
    for ours, theirs in zip(*(model.state_dict().items() for model in models), strict=True):
        assert torch.equal(ours[1], theirs[1]), ours[0]


def test_progress_reaches_its_total(folder):
    class Counts:
        total = done = 0
        ended = False

        def start(self, total):
            self.total = total

        def advance(self, count):
            self.done += count

        def finish(self):
            self.ended = True

    counts = Counts()
    load(folder, load_format="dummy", progress=counts)
    assert counts.ended and counts.done == counts.total > 0


@pytest.mark.parametrize(
    "quantized",
    [
        {
            "quant_method": "compressed-tensors",
            "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor"},
        },
        {"quant_method": "modelopt", "quant_algo": None, "kv_cache_quant_algo": "FP8"},
    ],
    ids=["compressed-tensors", "modelopt"],
)
def test_weights_stay_floats_where_only_the_cache_is_quantized(folder, quantized, monkeypatch):
    multiply_fp8_on_cpu(monkeypatch.setattr)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": quantized}))
    model = load(folder, torch.bfloat16, load_format="dummy")
    assert {each.dtype for each in model.state_dict().values()} == {torch.bfloat16}
