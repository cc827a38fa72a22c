# SPDX-License-Identifier: Apache-2.0
"""Settings of a model: what is left open is filled in, and layers get the object as it is."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.config.settings import Settings
from rtp_llm.device import resolve_device
from rtp_llm.layers import LayerOptions
from rtp_llm.loader import load_model, resolve
from rtp_llm.models.causal_lm import ModelOptions
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.models.decoders.qwen3 import Qwen3ForCausalLM
from rtp_llm.testing.loader.small_checkpoints import tensors, write


def test_what_is_automatic_comes_from_config_and_device(tmp_path):
    config = read_model_config(write(tmp_path, tensors()))
    device = resolve_device("cpu")
    found = resolve(Settings(model="x", quantization="int8"), config, device)
    assert found == ModelSettings(
        dtype="float32", quantization="int8", max_seq_len=64, seq_size_per_block=16
    )
    assert type(found) is ModelSettings  # a server's secrets have no business in a layer
    chosen = ModelSettings(dtype="bfloat16", max_seq_len=5, seq_size_per_block=4)
    assert resolve(chosen, config, device) == chosen


def test_every_setting_reaches_layers_and_backends(tmp_path, monkeypatch):
    seen = {}

    def make(self, config, options):
        seen["settings"] = options.settings
        seen["layers"] = options.layer_options().inside("a").inside("b").settings
        seen["backends"] = [each.settings for each in self.backend_configs(config, options)]
        raise InterruptedError

    monkeypatch.setattr(Qwen3ForCausalLM, "__init__", make)
    requested = ModelSettings(
        dtype="float32",
        load_format="dummy",
        max_seq_len=48,
        attention_backend="paged",
        seq_size_per_block=8,
    )
    with pytest.raises(InterruptedError):
        load_model(write(tmp_path, tensors()), device=resolve_device("cpu"), settings=requested)
    assert seen == {"settings": requested, "layers": requested, "backends": [requested]}


def test_options_hold_no_copy_of_a_setting():
    settings = {field.name for field in fields(ModelSettings)}
    for options in (ModelOptions, LayerOptions):
        assert not settings & {field.name for field in fields(options)}


def test_a_layer_may_have_other_settings():
    settings = ModelSettings(dtype="float32", quantization="int8", attention_backend="paged")
    options = LayerOptions(settings, resolve_device("cpu").torch_device)
    assert options.unquantized().settings == replace(settings, quantization="none")
    assert options.quantization == "int8"
