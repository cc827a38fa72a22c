# SPDX-License-Identifier: Apache-2.0
"""Gemma 2 and 3: what of folders and settings is read or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.device import resolve_device
from rtp_llm.loader import explain, load_model
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


@pytest.mark.parametrize("kind", ["gemma2", "gemma3", "gemma3_images"])
@pytest.mark.parametrize("chosen", ["float16", "auto"])
def test_float16_is_refused(tmp_path: Path, kind: str, chosen: str) -> None:
    """As a setting, and as the type of the folder."""
    save_model(tmp_path, kind, **SMALLEST)
    change(tmp_path, dtype="float16")
    message = r"Gemma\dFor\w+: float16 of activations .*range.* Set --dtype bfloat16 or float32\."
    settings, device = ModelSettings(dtype=chosen), resolve_device("cpu")
    for opens in (load_model, explain):
        with pytest.raises(UnsupportedModelError, match=message):
            opens(tmp_path, device=device, settings=settings)
    open_model(tmp_path, torch.bfloat16)


def test_float16_is_refused_of_encoders_and_draft_models(tmp_path: Path) -> None:
    save_model(tmp_path / "draft", "gemma3", **SMALLEST)
    save_model(tmp_path / "model", "llama", num_hidden_layers=1)
    with pytest.raises(UnsupportedModelError, match="Gemma3ForCausalLM: float16 of activations"):
        open_model(tmp_path / "model", torch.float16, draft_model=str(tmp_path / "draft"))
    named = {"architectures": ["Gemma3TextModel"], "use_bidirectional_attention": True}
    change(tmp_path / "draft", **named)
    with pytest.raises(UnsupportedModelError, match="Gemma3TextModel: float16 of activations"):
        open_model(tmp_path / "draft", torch.float16)


def change(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.mark.parametrize("kind", ["gemma2", "gemma3"])
def test_an_eagle3_head_is_refused(tmp_path: Path, kind: str) -> None:
    save_model(tmp_path, kind, **SMALLEST)
    message = r"Gemma\dForCausalLM: EAGLE-3 head of scaled embeddings .*ngram or suffix"
    with pytest.raises(UnsupportedModelError, match=message):
        read_model_config(tmp_path, eagle3=tmp_path / "head")
