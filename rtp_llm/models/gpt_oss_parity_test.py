# SPDX-License-Identifier: Apache-2.0
"""gpt-oss against transformers: floats and MXFP4, chunks around the window, half precision."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rtp_llm.device import resolve_device
from rtp_llm.loader import explain
from rtp_llm.testing.light_transformers import light_transformers
from rtp_llm.testing.models.contiguous_runner import ContiguousRunner
from rtp_llm.testing.models.mxfp4_checkpoints import store_as_mxfp4
from rtp_llm.testing.models.open_model import model_settings, open_model
from rtp_llm.testing.models.parity import TOLERANCE, check_mixed_batch, check_tokens_and_chunks
from rtp_llm.testing.models.transformers_models import expected_logits, random_prompt, save_model

with light_transformers():
    from transformers import AutoModelForCausalLM

torch.set_num_threads(2)

WINDOW = 24
AROUND = (1, 7, WINDOW - 1, WINDOW, WINDOW + 1, 33)
# Columns of gate and up, and of down, are whole blocks of MXFP4.
BLOCKS = {"intermediate_size": 96}


def test_logits_and_tokens_in_chunks_around_the_window(tmp_path: Path) -> None:
    """The answer is longer than the window; every second layer has none."""
    reference = save_model(tmp_path, "gpt_oss")
    model = open_model(tmp_path)
    assert model.config.layer_windows == (WINDOW, 0, WINDOW)
    check_tokens_and_chunks(model, reference, chunks=AROUND)
    check_mixed_batch(model)


@pytest.mark.parametrize(
    "left_out", ["sinks", "router.bias", "gate_up_proj_bias", "down_proj_bias"]
)
def test_weights_that_a_fresh_model_has_at_zero_are_compared(tmp_path: Path, left_out: str) -> None:
    """Logits differ by far more than the tolerance without one of them."""
    reference = save_model(tmp_path, "gpt_oss", num_hidden_layers=2)
    ours = ContiguousRunner(open_model(tmp_path), 1, 64).prefill(random_prompt(40))
    for name, parameter in reference.named_parameters():
        if name.endswith(left_out):
            parameter.data.fill_(-100.0 if left_out == "sinks" else 0.0)
    theirs = expected_logits(reference, random_prompt(40))
    assert (ours - theirs).abs().max() > 0.1


def test_other_heads_and_limits_of_the_activation(tmp_path: Path) -> None:
    limits = {"swiglu_alpha": 1.3, "swiglu_limit": 0.7, "attention_bias": False}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 32}
    kinds = {"layer_types": ["full_attention", "full_attention", "sliding_attention"]}
    reference = save_model(tmp_path, "gpt_oss", **limits, **heads, **kinds)
    check_tokens_and_chunks(open_model(tmp_path), reference, chunks=(16,))


def test_mxfp4_stands_for_the_numbers_of_transformers(tmp_path: Path) -> None:
    folder = tmp_path / "packed"
    save_model(folder, "gpt_oss", **BLOCKS)
    wide = store_as_mxfp4(folder)
    floats, packed = open_model(wide), open_model(folder)
    reference = AutoModelForCausalLM.from_pretrained(wide, attn_implementation="eager").eval()
    prompt = random_prompt(53)
    found = ContiguousRunner(packed, 1, 64).prefill(prompt)
    torch.testing.assert_close(found, expected_logits(reference, prompt), **TOLERANCE)
    expected = ContiguousRunner(floats, 1, 64).prefill(prompt)
    torch.testing.assert_close(found, expected, **TOLERANCE)
    check_mixed_batch(packed)


@pytest.mark.parametrize("stored", ["floats", "mxfp4"])
def test_bfloat16_is_as_close_as_transformers_is(tmp_path: Path, stored: str) -> None:
    """The error against float32 of most tokens: a rounded logit may choose another expert."""
    folder = tmp_path / "model"
    reference = save_model(folder, "gpt_oss", **BLOCKS)
    if stored == "mxfp4":
        wide = store_as_mxfp4(folder)
        reference = AutoModelForCausalLM.from_pretrained(wide, attn_implementation="eager").eval()
    prompt = random_prompt(200)
    exact = expected_logits(reference, prompt)
    theirs = expected_logits(reference.to(torch.bfloat16), prompt) - exact
    ours = ContiguousRunner(open_model(folder, torch.bfloat16), 1, 256).prefill(prompt) - exact
    errors = [error.square().mean(dim=-1).sqrt().median() for error in (ours, theirs)]
    print(f"{stored}: {errors[0]:.4f}, and {errors[1]:.4f} of transformers")
    assert 0 < errors[0] < 1.3 * errors[1]


def test_explain_names_the_format_and_what_becomes_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "packed"
    save_model(folder, "gpt_oss", **BLOCKS)
    store_as_mxfp4(folder, torch.bfloat16)
    settings = model_settings(torch.bfloat16)
    text = explain(folder, device=resolve_device("cpu"), settings=settings)
    assert "MiB of MXFP4 blocks as they are" in text
    assert "mxfp4 (priority 20): chosen" in text
    assert "window 24, and full, with sinks" in text
