# SPDX-License-Identifier: Apache-2.0
"""Layers of multi-token prediction in GGUF files against the same in plain PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm.layers.gguf_matrix import GgufMatrix
from rtp_llm.models.config import UnsupportedModelError
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.gguf.models import save_gguf
from rtp_llm.testing.gguf.mtp import save_mtp_gguf
from rtp_llm.testing.models.contiguous_runner import ContiguousRunner
from rtp_llm.testing.models.mtp_models import save_mtp_model
from rtp_llm.testing.models.open_model import open_model
from rtp_llm.testing.models.parity import HYBRID_TOLERANCE
from rtp_llm.testing.models.transformers_models import random_prompt, save_model

torch.set_num_threads(2)

_HYBRID = {"num_hidden_layers": 3, "linear_value_head_dim": 64, "intermediate_size": 128}
_EXPERTS = {**_HYBRID, "moe_intermediate_size": 64}


def _save(folder: Path, architecture: str, kind: str, kinds: str, **settings: Any) -> Any:
    """The file, and the layer."""
    model, oracle = save_mtp_model(folder / "twin", kind, **settings)
    return save_mtp_gguf(folder / "tiny.gguf", model, oracle, architecture, kinds), oracle


@pytest.mark.parametrize(
    ("architecture", "kind", "kinds", "settings"),
    [
        ("qwen35", "qwen3_5", "F32", _HYBRID),
        ("qwen35", "qwen3_5", "Q8_0", _HYBRID),
        ("qwen35moe", "qwen3_5_moe", "Q8_0", _EXPERTS),
        ("qwen3next", "qwen3_next", "F32", _EXPERTS),
        ("deepseek2", "deepseek_v3", "F32", {"num_hidden_layers": 2}),
    ],
    ids=str,
)
def test_what_a_prompt_gives(
    tmp_path: Path, architecture: str, kind: str, kinds: str, settings: dict[str, Any]
) -> None:
    file, oracle = _save(tmp_path, architecture, kind, kinds, **settings)
    prompt = random_prompt(20)
    hidden = oracle.hidden_states(prompt[:-1])
    model = open_model(file, mtp=True, gguf_activations="float")
    blocks = [each for each in model.drafts.modules() if isinstance(each, GgufMatrix)]
    assert bool(blocks) == (kinds != "F32")
    found = ContiguousRunner(model, 1, 64).draft(prompt[1:], hidden)
    expected = oracle.logits(oracle(prompt[1:], hidden))
    torch.testing.assert_close(found, expected, **HYBRID_TOLERANCE)
    open_model(file)  # leaves the layer out


def test_drafts_of_one_file_change_no_answer(tmp_path: Path) -> None:
    file, _ = _save(tmp_path, "qwen35", "qwen3_5", "Q8_0", **_HYBRID)
    prompt, common = random_prompt(30), {"gguf_activations": "float"}
    expected = TinyEngine(file, **common).tokens(prompt, ignore_eos=True)
    engine = TinyEngine(file, speculative="mtp", num_speculative_tokens=2, **common)
    assert engine.tokens(prompt, ignore_eos=True) == expected
    assert engine.outcomes[1, 0].drafts > 0


def test_files_without_the_layer_are_refused(tmp_path: Path) -> None:
    """Some were written without it, and still count it."""
    model = save_model(tmp_path, "qwen3_5", **_HYBRID)
    sizes = {"qwen35.block_count": 4, "qwen35.nextn_predict_layers": 1}
    for more in ({}, sizes):
        (file,) = save_gguf(tmp_path / "tiny.gguf", model, "qwen35", more=more)
        assert read_model_config(file).num_layers == 3
        with pytest.raises(UnsupportedModelError, match="no layer of multi-token prediction"):
            read_model_config(file, mtp=True)
