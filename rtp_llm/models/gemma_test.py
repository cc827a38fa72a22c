# SPDX-License-Identifier: Apache-2.0
"""Gemma 2 and 3: what of folders and settings is read or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtp_llm.models.config import UnsupportedModelError
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.testing.models.transformers_models import save_model


@pytest.mark.parametrize("kind", ["gemma2", "gemma3"])
def test_an_eagle3_head_is_refused(tmp_path: Path, kind: str) -> None:
    save_model(tmp_path, kind, num_hidden_layers=1, layer_types=["full_attention"])
    message = r"Gemma\dForCausalLM: EAGLE-3 head of scaled embeddings .*ngram or suffix"
    with pytest.raises(UnsupportedModelError, match=message):
        read_model_config(tmp_path, eagle3=tmp_path / "head")
