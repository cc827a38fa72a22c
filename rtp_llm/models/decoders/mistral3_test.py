# SPDX-License-Identifier: Apache-2.0
"""Folders of Mistral3ForConditionalGeneration: their language models, and names of tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rtp_llm.models.config import UnsupportedModelError
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.testing.models.open_model import open_model
from rtp_llm.testing.models.transformers_models import save_model


def change_text(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config["text_config"] |= values
    file.write_text(json.dumps(config))


def test_names_may_be_in_either_order(tmp_path: Path) -> None:
    save_model(tmp_path, "mistral3_images", num_hidden_layers=1)
    file = tmp_path / "model.safetensors"
    older = load_file(file)
    assert "language_model.lm_head.weight" in older
    expected = dict(open_model(tmp_path).named_parameters())
    newer = {
        name.replace("language_model.lm_head.", "lm_head.")
        if "lm_head" in name
        else f"model.{name.replace('language_model.model.', 'language_model.')}": tensor
        for name, tensor in older.items()
    }
    save_file(newer, file)
    found = dict(open_model(tmp_path).named_parameters())
    assert found.keys() == expected.keys()
    assert "lm_head.product.weight" in found
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


def test_the_text_part_says_which_model_it_is(tmp_path: Path) -> None:
    save_model(tmp_path, "ministral3_images", num_hidden_layers=1)
    config = read_model_config(tmp_path)
    assert config.query_scaling is not None
    assert config.tie_word_embeddings
    change_text(tmp_path, model_type=None)
    assert read_model_config(tmp_path).query_scaling is None
    change_text(tmp_path, model_type="mistral4")
    message = r"Mistral3For\w+: other text part .*\(config.json: model_type 'mistral4'.*"
    with pytest.raises(UnsupportedModelError, match=message):
        read_model_config(tmp_path)
