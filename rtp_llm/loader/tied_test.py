# SPDX-License-Identifier: Apache-2.0
"""Tests of tied heads: what a checkpoint that holds one anyway means, as transformers takes it."""

from __future__ import annotations

import logging

import pytest
import torch
from safetensors.torch import load_file, save_file

from rtp_llm.testing.light_transformers import light_transformers
from rtp_llm.testing.models.contiguous_runner import ContiguousRunner
from rtp_llm.testing.models.open_model import open_model
from rtp_llm.testing.models.parity import TOLERANCE
from rtp_llm.testing.models.transformers_models import (
    expected_logits,
    random_prompt,
    save_model,
)

with light_transformers():
    from transformers import AutoModelForCausalLM

TABLE, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("stored", ["other", "equal", "rounded alike", "head only", "table only"])
def test_the_head_is_the_one_that_transformers_takes(tmp_path, kind, stored, caplog):
    save_model(tmp_path, kind, tie_word_embeddings=True)
    weights = load_file(tmp_path / "model.safetensors")
    assert HEAD not in weights
    if stored == "other":
        weights[HEAD] = weights[TABLE].flip(0).contiguous()
    elif stored == "equal":
        weights[HEAD] = weights[TABLE].clone()
    elif stored == "rounded alike":
        weights[HEAD] = weights[TABLE].double()
    elif stored == "head only":
        weights[HEAD] = weights.pop(TABLE)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with caplog.at_level(logging.WARNING, "rtp_llm.loader"):
        ours = open_model(tmp_path)
    prompt = random_prompt(20)
    logits = ContiguousRunner(ours, 1, 32).prefill(prompt)
    torch.testing.assert_close(logits, expected_logits(theirs, prompt), **TOLERANCE)
    shares = theirs.lm_head.weight.data_ptr() == theirs.model.embed_tokens.weight.data_ptr()
    assert shares == (stored != "other")
    assert shares == hasattr(ours.lm_head, "weight")
    if shares:
        assert ours.lm_head.weight.data_ptr() == ours.model.embed_tokens.weight.data_ptr()
    warned = [record for record in caplog.records if "holds another one" in record.getMessage()]
    assert len(warned) == (stored == "other")


def test_a_head_of_its_own_is_quantised_on_its_own(tmp_path):
    save_model(tmp_path, "llama", tie_word_embeddings=True)
    weights = load_file(tmp_path / "model.safetensors")
    weights[HEAD] = -weights[TABLE]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    model = open_model(tmp_path, quantization="int8")
    hidden = torch.randn(3, weights[TABLE].shape[1])
    exact = hidden @ weights[HEAD].T
    assert (model.compute_logits(hidden) - exact).abs().max() < 0.02 * exact.abs().max()
