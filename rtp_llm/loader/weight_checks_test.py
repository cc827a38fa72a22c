# SPDX-License-Identifier: Apache-2.0
"""Tests that a checkpoint is held against its config.json before memory is taken, and its links."""

from __future__ import annotations

import json
import logging
import os

import pytest
import torch
from safetensors.torch import save_file

from rtp_llm.layers import options as layer_options
from rtp_llm.loader import CheckpointError, WeightError
from rtp_llm.loader.checkpoint import Checkpoint
from rtp_llm.models.config import UnsupportedModelError
from rtp_llm.ops.huge_pages import empty_on
from rtp_llm.testing.loader.small_checkpoints import tensors, write
from rtp_llm.testing.models.open_model import open_model as load

INDEX = "model.safetensors.index.json"


@pytest.fixture
def no_memory(monkeypatch):
    """Weights may have shapes, no memory."""

    def planned_only(device, shape, dtype):
        assert device.type == "meta", shape
        return empty_on(device, shape, dtype)

    monkeypatch.setattr(layer_options, "empty_on", planned_only)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": 2**20},
        {"vocab_size": 2**24},
        {"intermediate_size": 2**24, "hidden_size": 2**20},
        {"num_hidden_layers": 300},
        {"num_attention_heads": 2**14, "head_dim": 2**10},
        {"architectures": ["LlamaForCausalLM"]},
    ],
)
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_shapes_are_compared_before_memory_is_taken(tmp_path, changes, quantization, no_memory):
    write(tmp_path, tensors(), **changes)
    with pytest.raises(WeightError, match="do not fit") as caught:
        load(tmp_path, quantization=quantization)
    assert str(tmp_path) in str(caught.value)


def test_far_more_layers_and_experts_than_tensors_are_not_even_planned(tmp_path, no_memory):
    mixture = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": 2**14,
        "num_hidden_layers": 2**12,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 16,
    }
    write(tmp_path, tensors(), **mixture)
    with pytest.raises(WeightError, match="num_hidden_layers 4096 with 16384 experts, so at least"):
        load(tmp_path)


def test_stacked_experts_are_no_more_than_there_are(tmp_path):
    entry = {"dtype": "F32", "shape": [2**60, 2, 0], "data_offsets": [0, 0]}
    header = json.dumps({"model.layers.0.mlp.experts.gate_up_proj": entry}).encode()
    write(tmp_path, tensors())
    content = len(header).to_bytes(8, "little") + header
    (tmp_path / "model.safetensors").write_bytes(content)
    assert len(Checkpoint.open(tmp_path).tensors) == 1
    with pytest.raises(WeightError, match=r"not known to this architecture: model.layers.0.mlp"):
        load(tmp_path)


def test_experts_that_are_there_twice_are_named(tmp_path):
    twice = {
        "layers.0.experts.down_proj": torch.ones(2, 4, 4),
        "layers.0.experts.1.down_proj.weight": torch.ones(4, 4),
    }
    save_file(twice, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"experts\.1\.down_proj\.weight once more"):
        Checkpoint.open(tmp_path)


def test_what_nobody_reads_may_have_any_type_and_is_named_once(tmp_path, caplog):
    weights = tensors()
    for layer in range(2):
        name = f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"
        weights[name] = torch.ones(5, dtype=torch.int64)
    write(tmp_path, weights)
    with caplog.at_level(logging.INFO, "rtp_llm.loader"):
        load(tmp_path)
    named = [r.getMessage() for r in caplog.records if "inv_freq" in r.getMessage()]
    pattern = "model.layers.*.self_attn.rotary_emb.inv_freq (2)"
    assert named == [f"2 tensors have no use here: {pattern}"]


def test_an_unknown_tensor_is_unknown_whatever_its_type(tmp_path):
    weights = {**tensors(), "model.masks": torch.ones(2, dtype=torch.bool)}
    with pytest.raises(WeightError, match=r"not known to this architecture: model.masks"):
        load(write(tmp_path, weights))


def test_a_refusal_begins_with_the_architecture(tmp_path):
    weights = {**tensors(), "model.norm.weight": torch.ones(24, dtype=torch.uint8)}
    with pytest.raises(UnsupportedModelError, match=r"^Qwen3ForCausalLM: .*stored as U8 in .*saf"):
        load(write(tmp_path, weights))
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError, match=r"^Qwen3ForCausalLM: weights that are not"):
        load(tmp_path)


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/etc/passwd", "sub/x.safetensors", "..", ".", "", "a\0b", 5, None]
)
def test_an_index_names_files_of_its_folder(tmp_path, name):
    write(tmp_path, tensors(), shards=2)
    index = json.loads((tmp_path / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = name
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"index\.json.*weight_map must"):
        load(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"weight_map": []}', "{}", "[" * 10**5])
def test_a_broken_index_is_named(tmp_path, content):
    write(tmp_path, tensors(), shards=2)
    (tmp_path / INDEX).write_text(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json"):
        load(tmp_path)


def test_the_links_of_a_cache_are_followed(tmp_path):
    """The layout of huggingface_hub: names in a snapshot, content in a blobs folder next to it."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    blobs.mkdir(), snapshot.mkdir(parents=True)
    write(snapshot, tensors(), shards=2)
    for number, file in enumerate(sorted(snapshot.iterdir())):
        file.rename(blobs / str(number))
        file.symlink_to(f"../../blobs/{number}")
    assert load(snapshot).config.num_layers == 2


@pytest.mark.parametrize("kind", ["pipe", "directory", "loop", "dangling", "device"])
@pytest.mark.parametrize("shards", [1, 2])
def test_weights_are_ordinary_files(tmp_path, kind, shards):
    write(tmp_path, tensors(), shards=shards)
    file = sorted(tmp_path.glob("*.safetensors"))[0]
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "directory":
        file.mkdir()
    else:
        file.symlink_to({"loop": file.name, "dangling": "none", "device": "/dev/zero"}[kind])
    with pytest.raises(CheckpointError, match=file.name):
        load(tmp_path)
