# SPDX-License-Identifier: Apache-2.0
"""Gemma 2 and 3: what of folders and settings is read or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rtp_llm.models.config import UnsupportedModelError
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.testing.models.open_model import open_model
from rtp_llm.testing.models.transformers_models import save_model

SMALLEST = {"num_hidden_layers": 1, "layer_types": ["full_attention"]}


def test_names_of_a_multimodal_folder_may_be_in_either_order(tmp_path: Path) -> None:
    save_model(tmp_path, "gemma3_images", **SMALLEST)
    file = tmp_path / "model.safetensors"
    older = load_file(file)
    assert {name.partition(".")[0] for name in older} == {
        "language_model",
        "multi_modal_projector",
        "vision_tower",
    }
    expected = dict(open_model(tmp_path).named_parameters())
    newer = {
        f"model.{name.replace('language_model.model.', 'language_model.')}": tensor
        for name, tensor in older.items()
    }
    head = {"lm_head.weight": newer["model.language_model.embed_tokens.weight"].clone()}
    save_file(newer | head, file)
    found = dict(open_model(tmp_path).named_parameters())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


@pytest.mark.parametrize("kind", ["gemma2", "gemma3"])
def test_an_eagle3_head_is_refused(tmp_path: Path, kind: str) -> None:
    save_model(tmp_path, kind, **SMALLEST)
    message = r"Gemma\dForCausalLM: EAGLE-3 head of scaled embeddings .*ngram or suffix"
    with pytest.raises(UnsupportedModelError, match=message):
        read_model_config(tmp_path, eagle3=tmp_path / "head")
