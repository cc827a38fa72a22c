# SPDX-License-Identifier: Apache-2.0
"""Parity with transformers: the same weights give the same logits and the same greedy tokens."""

from __future__ import annotations

import itertools
import json

import pytest
import torch

from rtp_llm.quantization import int4, int8
from rtp_llm.testing.models.contiguous_runner import ContiguousRunner
from rtp_llm.testing.models.open_model import open_model
from rtp_llm.testing.models.parity import TOLERANCE, check_mixed_batch, check_tokens_and_chunks
from rtp_llm.testing.models.transformers_models import (
    expected_logits,
    random_prompt,
    save_model,
)

torch.set_num_threads(2)

WINDOWED = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}


LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.75,
    "original_max_position_embeddings": 40,
    "short_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 2.5],
    "long_factor": [1.2, 1.7, 2.9, 4.0, 7.0, 11.0],
}


def heads(query, key_value, head_dim):
    return {
        "num_attention_heads": query,
        "num_key_value_heads": key_value,
        "head_dim": head_dim,
    }


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("llama", heads(4, 4, 64)),
        ("llama", heads(4, 1, 80) | {"attention_bias": True, "mlp_bias": True}),
        ("llama", heads(7, 1, 128) | {"tie_word_embeddings": True}),
        ("mistral", heads(3, 3, 128) | {"sliding_window": None}),
        ("mistral", heads(8, 2, 64) | {"sliding_window": 24}),
        ("mistral", heads(7, 1, 80) | {"sliding_window": 17}),
        ("qwen2", heads(5, 5, 80)),
        ("qwen2", heads(14, 2, 64) | {"tie_word_embeddings": True}),
        ("qwen2", heads(4, 1, 128) | WINDOWED),
        ("qwen3", heads(3, 3, 64) | {"tie_word_embeddings": True}),
        ("qwen3", heads(4, 1, 128) | {"attention_bias": True}),
        ("qwen3", heads(7, 1, 80) | WINDOWED),
        ("gemma2", heads(4, 2, 64) | {"attention_bias": True}),
        ("gemma2", heads(5, 1, 80)),
        ("gemma3", heads(4, 1, 64) | {"attention_bias": True}),
        (
            "gemma3",
            heads(3, 3, 80) | {"final_logit_softcapping": 9.0},
        ),
        ("gemma3_images", heads(4, 2, 64)),
        ("gemma4", heads(4, 2, 32)),
        ("gemma4", heads(5, 1, 48) | {"attention_bias": True, "global_head_dim": 80}),
        ("gemma4_images", heads(4, 2, 32)),
        ("gemma4_experts", heads(6, 3, 32) | {"tie_word_embeddings": False}),
        ("gemma4_unified", heads(4, 2, 48)),
        ("ernie4_5", heads(4, 2, 64)),
        ("ernie4_5_moe", heads(4, 1, 16)),
        ("glm4_moe", heads(4, 2, 64)),
        ("minimax_m2", heads(8, 2, 64)),
        ("ministral3", heads(4, 1, 64)),
        ("ministral3_images", heads(4, 2, 64)),
        ("mistral3_images", heads(4, 1, 80) | {"sliding_window": 24}),
        ("exaone4", heads(4, 2, 64)),
        (
            "exaone4",
            heads(5, 1, 80) | {"sliding_window": None, "layer_types": ["full_attention"] * 3},
        ),
        ("glm4", heads(4, 2, 64)),
        ("glm4", heads(5, 1, 80) | {"attention_bias": False}),
        ("granite", heads(4, 2, 16) | {"attention_bias": True, "mlp_bias": True}),
        ("granite_moe", heads(4, 1, 16)),
        ("olmo2", heads(4, 2, 16) | {"attention_bias": True}),
        ("olmo3", heads(4, 1, 16)),
        ("phi3", heads(4, 2, 16)),
        ("phi3", heads(4, 1, 16) | {"sliding_window": 24, "rope_parameters": LONGROPE}),
        ("seed_oss", heads(4, 1, 64)),
        ("smollm3", heads(4, 1, 16) | {"attention_bias": True}),
        ("mixtral", heads(4, 2, 64) | {"sliding_window": 24}),
        ("qwen2_moe", heads(5, 1, 64) | {"mlp_only_layers": [1]}),
        ("qwen3_moe", heads(4, 2, 64) | {"norm_topk_prob": False, "decoder_sparse_step": 2}),
        ("qwen3_moe", heads(3, 3, 64) | {"num_experts": 64, "num_experts_per_tok": 8}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_every_architecture(tmp_path, kind, settings):
    reference = save_model(tmp_path, kind, **settings)
    check_tokens_and_chunks(open_model(tmp_path), reference)


@pytest.mark.parametrize("kind", ["gemma2", "gemma3", "gemma4", "gemma4_unified"])
def test_layers_with_a_window_and_without_in_chunks_around_it(tmp_path, kind):
    reference = save_model(tmp_path, kind)
    model, prompt = open_model(tmp_path), random_prompt(53)
    assert set(model.config.layer_windows) == {0, 24}
    expected = expected_logits(reference, prompt)
    for chunk in (*range(20, 29), 47, 48, 49):
        parts = ContiguousRunner(model, 1, 64).prefill(prompt, chunk)
        torch.testing.assert_close(parts, expected, **TOLERANCE)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32}


@pytest.mark.parametrize(
    ("rope", "length"),
    [
        ({"rope_type": "linear", "factor": 2.0}, 256),
        # The 53 tokens of the prompt are within the limit, most of the answer is beyond it.
        ({"rope_type": "dynamic", "factor": 2.0}, 64),
        (LLAMA3, 256),
        (YARN, 256),
        (YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.3}, 256),
        (YARN | {"mscale": 0.7, "mscale_all_dim": 1.4, "truncate": False}, 256),
    ],
    ids=["linear", "dynamic", "llama3", "yarn", "yarn-betas", "yarn-mscale"],
)
def test_rope_scaling_in_both_forms(tmp_path, rope, length):
    settings = {"rope_parameters": {"rope_theta": 5e4, **rope}, "max_position_embeddings": length}
    reference = save_model(tmp_path, "llama", **settings)
    limit = 128 if rope["rope_type"] == "dynamic" else None
    new_form = open_model(tmp_path, max_seq_len=limit)
    check_tokens_and_chunks(new_form, reference, chunks=(16,))

    values = json.loads((tmp_path / "config.json").read_text())
    values["rope_theta"] = values["rope_parameters"].pop("rope_theta")
    values["rope_scaling"] = values.pop("rope_parameters")
    (tmp_path / "config.json").write_text(json.dumps(values))
    old_form = open_model(tmp_path, max_seq_len=limit)
    assert torch.equal(old_form.model.rotary.cos_sin, new_form.model.rotary.cos_sin)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [("qwen3", WINDOWED), ("gemma2", {}), ("gemma3", {}), ("gemma4", {}), ("gemma4_experts", {})],
    ids=str,
)
def test_a_mixed_batch_gives_what_each_sequence_gives_alone(tmp_path, kind, settings):
    save_model(tmp_path, kind, **settings)
    check_mixed_batch(open_model(tmp_path))


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *itertools.product(("llama", "mistral", "qwen2", "qwen3"), (torch.bfloat16, torch.float16)),
        ("gemma2", torch.bfloat16),
        ("gemma3", torch.bfloat16),
        ("gemma3_images", torch.bfloat16),
        ("gemma4", torch.bfloat16),
        ("gemma4_unified", torch.bfloat16),
    ],
)
def test_half_precision_is_as_close_as_transformers_is(tmp_path, kind, dtype):
    """The error against float32 may be 1.3 times the one that transformers makes."""
    reference = save_model(tmp_path, kind)
    prompt = random_prompt(53)
    exact = expected_logits(reference, prompt)
    theirs = (expected_logits(reference.to(dtype), prompt) - exact).square().mean().sqrt()
    ours = ContiguousRunner(open_model(tmp_path, dtype), 1, 64).prefill(prompt) - exact
    assert 0 < ours.square().mean().sqrt() < 1.3 * theirs
    assert ours.abs().max() < 0.05 * exact.abs().max()


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *itertools.product(("mixtral", "qwen3_moe"), (torch.bfloat16, torch.float16)),
        ("gemma4_experts", torch.bfloat16),
    ],
)
def test_mixtures_in_half_precision_are_as_close_for_most_tokens(tmp_path, kind, dtype):
    """A rounded router logit may choose another expert, there or here: medians of the rows."""
    reference = save_model(tmp_path, kind)
    prompt = random_prompt(53)
    exact = expected_logits(reference, prompt)
    theirs = expected_logits(reference.to(dtype), prompt) - exact
    ours = ContiguousRunner(open_model(tmp_path, dtype), 1, 64).prefill(prompt) - exact
    row_errors = [error.square().mean(dim=-1).sqrt() for error in (ours, theirs)]
    assert 0 < row_errors[0].median() < 2 * row_errors[1].median()
    assert row_errors[0].max() < 0.5 * exact.square().mean().sqrt()


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "gemma3", "gemma4"])
@pytest.mark.parametrize(
    ("quantization", "dtype", "least", "most"),
    [
        ("int8", torch.float32, 0.95, 1.05),  # nothing but the weights is rounded
        ("int8", torch.bfloat16, 0.5, 2.0),
        ("w8a8_int8", torch.float32, 1.05, 2.0),
        ("w8a8_int8", torch.bfloat16, 0.5, 2.0),
        ("int4", torch.float32, 0.9, 1.1),  # activations in 8 bits add little to it
    ],
)
def test_weights_are_as_close_as_their_rounding_allows(
    tmp_path, kind, quantization, dtype, least, most
):
    """The error of logits, in errors of a float32 model whose weights alone are rounded."""
    settings = {"hidden_size": 160, "tie_word_embeddings": kind == "qwen3"}
    reference = save_model(tmp_path, kind, **settings)
    prompt = random_prompt(53)
    exact = expected_logits(reference, prompt)
    model = open_model(tmp_path, dtype, quantization=quantization)
    ours = ContiguousRunner(model, 1, 64).prefill(prompt)
    again = ContiguousRunner(model, 1, 64).prefill(prompt, 7)
    round_weights(reference, quantization)
    rounded = (expected_logits(reference, prompt) - exact).square().mean().sqrt()
    error = (ours - exact).square().mean().sqrt()
    print(f"{kind} {quantization} {dtype}: {error / rounded:.3f} x {rounded:.4f}")
    assert least * rounded < error < most * rounded
    assert (again - ours).square().mean().sqrt() < 1.5 * rounded


@torch.no_grad()
def round_weights(reference, quantization):
    """Give transformers the weights that a model really has; its embedding stays exact."""
    kind = int4 if quantization == "int4" else int8
    table = reference.model.embed_tokens
    table.weight = torch.nn.Parameter(table.weight.clone())  # no longer tied
    for module in reference.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.copy_(kind.dequantize_rows(*kind.quantize_rows(module.weight)))


def test_other_block_sizes_change_nothing(tmp_path):
    save_model(tmp_path, "mistral", sliding_window=24)
    model = open_model(tmp_path)
    prompt = random_prompt(53)
    whole = ContiguousRunner(model, 1, 64).prefill(prompt)
    for block_size in (1, 5, 64):
        other = ContiguousRunner(model, 1, 64, block_size).prefill(prompt, 13)
        torch.testing.assert_close(other, whole, **TOLERANCE)
