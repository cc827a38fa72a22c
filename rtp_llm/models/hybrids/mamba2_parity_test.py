# SPDX-License-Identifier: Apache-2.0
"""Hybrids of Mamba-2 and attention against transformers' with the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rtp_llm.testing.models.contiguous_runner import ContiguousRunner
from rtp_llm.testing.models.open_model import open_model
from rtp_llm.testing.models.parity import TOLERANCE
from rtp_llm.testing.models.transformers_models import expected_logits, random_prompt, save_model

torch.set_num_threads(2)
EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 3}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("granite4", EXPERTS | {"mamba_n_groups": 1}),
        # Limits of steps, which transformers' steps of one token do not observe.
        ("granite4", {"time_step_limit": (0.4, 0.9)}),
        ("granite4", {"layer_types": ["full_attention"] * 2, "num_hidden_layers": 2}),
        (
            "granite4",
            {
                "position_embedding_type": "rope",
                "attention_bias": True,
                "mamba_conv_bias": False,
                "mamba_proj_bias": True,
                "mamba_d_conv": 2,
                "tie_word_embeddings": True,
            },
        ),
        ("nemotron_h", {}),
        (
            "nemotron_h",
            {
                "layers_block_type": ["mlp", "linear_attention", "full_attention"],
                "num_hidden_layers": 3,
                "conv_kernel": 3,
                "mlp_bias": True,
                "use_bias": True,
                "use_conv_bias": False,
            },
        ),
    ],
    ids=str,
)
def test_every_architecture(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    """Prompts at once, in chunks and token by token; engine/hybrid_models_test.py has tokens."""
    reference = save_model(tmp_path, kind, **settings)
    model, prompt = open_model(tmp_path), random_prompt(97)
    expected = expected_logits(reference, prompt)
    for chunk in (None, 1, 7, 16, 33):
        ours = ContiguousRunner(model, 1, 97).prefill(prompt, chunk)
        torch.testing.assert_close(ours, expected, **TOLERANCE)


@pytest.mark.parametrize("kind", ["granite4", "nemotron_h"])
def test_half_precision_is_as_close_as_transformers_is(tmp_path: Path, kind: str) -> None:
    """The error against float32 may be 1.3 times the one that transformers makes."""
    reference = save_model(tmp_path, kind)
    prompt = random_prompt(53)
    exact = expected_logits(reference, prompt)
    theirs = (expected_logits(reference.bfloat16(), prompt) - exact).square().mean().sqrt()
    model = open_model(tmp_path, torch.bfloat16)
    for chunk in (None, 3):
        ours = ContiguousRunner(model, 1, 64).prefill(prompt, chunk) - exact
        assert 0 < ours.square().mean().sqrt() < 1.3 * theirs
