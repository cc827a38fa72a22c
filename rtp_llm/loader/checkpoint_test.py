# SPDX-License-Identifier: Apache-2.0
"""Tests of files that are missing, broken, of another kind or spread over shards."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from rtp_llm.loader import CheckpointError
from rtp_llm.models.config import UnsupportedModelError
from rtp_llm.testing.loader.small_checkpoints import CONFIG, tensors, write
from rtp_llm.testing.models.open_model import open_model as load


def test_no_weights(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(CheckpointError, match="holds no weights"):
        load(tmp_path)


def test_other_formats_are_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(UnsupportedModelError, match=r"save_pretrained.*pytorch_model\.bin"):
        load(tmp_path)


def test_a_single_file_of_another_name_is_taken(tmp_path):
    weights = tensors()
    write(tmp_path, weights)
    (tmp_path / "model.safetensors").rename(tmp_path / "weights.safetensors")
    norm = load(tmp_path).model.norm.weight
    assert torch.equal(norm, weights["model.norm.weight"])
    save_file({}, tmp_path / "more.safetensors")
    with pytest.raises(CheckpointError, match=r"several .*: more\.s.*, weights\.s"):
        load(tmp_path)


def test_a_missing_shard_is_named(tmp_path):
    write(tmp_path, tensors(), shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"not there: \['model-00002-of"):
        load(tmp_path)


def test_a_cut_off_file(tmp_path):
    file = write(tmp_path, tensors()) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is cut off"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
        (b"abc", "shorter than its header says"),
        (b"", "shorter than its header says"),
        (b"\x02" + bytes(7) + b"[]", "broken header"),
        (b"\x02" + bytes(7) + b"{,", "broken header"),
    ],
)
def test_a_file_that_is_none(tmp_path, content, message):
    (write(tmp_path, tensors()) / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path)


def test_bytes_that_do_not_fit_the_shape(tmp_path):
    fields = {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}
    header = json.dumps({"model.norm.weight": fields}).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(8)
    (write(tmp_path, tensors()) / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"norm\.weight has 8 bytes for the shape \[3\]"):
        load(tmp_path)


def test_weights_in_integers_are_refused(tmp_path):
    weights = tensors()
    weights["model.norm.weight"] = torch.ones(24, dtype=torch.int8)
    with pytest.raises(UnsupportedModelError, match=r"model\.norm\.weight is stored as I8"):
        load(write(tmp_path, weights))


def test_a_broken_index(tmp_path):
    write(tmp_path, tensors(), shards=2)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"cannot read .*index\.json"):
        load(tmp_path)


def test_a_tensor_in_two_files(tmp_path):
    weights = tensors()
    write(tmp_path, weights, shards=2)
    for file in tmp_path.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            held = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        save_file({**held, "twice": torch.ones(1)}, file)
    with pytest.raises(CheckpointError, match=r"twice is in .* and again in"):
        load(tmp_path)
