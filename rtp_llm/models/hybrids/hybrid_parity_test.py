# SPDX-License-Identifier: Apache-2.0
"""Models with gated delta nets against transformers: logits, tokens, layouts of checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rtp_llm.loader import WeightError
from rtp_llm.testing.models.contiguous_runner import ContiguousRunner
from rtp_llm.testing.models.open_model import open_model
from rtp_llm.testing.models.parity import (
    HYBRID_TOLERANCE,
    check_mixed_batch,
    check_tokens_and_chunks,
)
from rtp_llm.testing.models.transformers_models import expected_logits, random_prompt, save_model

torch.set_num_threads(2)

FULL, LINEAR = "full_attention", "linear_attention"


def heads(key_heads: int, value_heads: int, key_size: int, value_size: int) -> dict[str, Any]:
    return {
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": key_size,
        "linear_value_head_dim": value_size,
    }


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("qwen3_5", {}),
        ("qwen3_5", heads(1, 1, 24, 8) | {"tie_word_embeddings": True, "num_hidden_layers": 3}),
        ("qwen3_5", heads(2, 6, 8, 40) | {"layer_types": [FULL, LINEAR, LINEAR, FULL]}),
        ("qwen3_5", {"linear_conv_kernel_dim": 2, "head_dim": 256, "attention_bias": True}),
        ("qwen3_5_images", {"tie_word_embeddings": True}),
        ("qwen3_5_images", heads(2, 2, 16, 16)),
        ("qwen3_5_moe", heads(4, 4, 16, 32)),
        ("qwen3_5_moe_images", {"full_attention_interval": 2, "num_hidden_layers": 3}),
        ("qwen3_next", {}),
        ("qwen3_next", heads(2, 6, 40, 8) | {"attention_bias": True, "mlp_only_layers": [1]}),
        ("qwen3_next", {"norm_topk_prob": False, "decoder_sparse_step": 2, "head_dim": 64}),
    ],
    ids=str,
)
def test_every_architecture(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    reference = save_model(tmp_path, kind, **settings)
    check_tokens_and_chunks(open_model(tmp_path), reference, tolerance=HYBRID_TOLERANCE)


def test_a_mixed_batch_gives_what_each_sequence_gives_alone(tmp_path: Path) -> None:
    save_model(tmp_path, "qwen3_5")
    check_mixed_batch(open_model(tmp_path), HYBRID_TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("kind", "states"),
    [("qwen3_5", "float32"), ("qwen3_5", "bfloat16"), ("qwen3_5_images", "float32")],
)
def test_half_precision_is_as_close_as_transformers_is(
    tmp_path: Path, kind: str, states: str, dtype: torch.dtype
) -> None:
    """The error against float32 may be 1.3 times the one that transformers makes."""
    reference = save_model(tmp_path, kind)
    prompt = random_prompt(53)
    exact = expected_logits(reference, prompt)
    theirs = (expected_logits(reference.to(dtype), prompt) - exact).square().mean().sqrt()
    model = open_model(tmp_path, dtype, mamba_ssm_cache_dtype=states)
    for chunk in (None, 3):
        ours = ContiguousRunner(model, 1, 64).prefill(prompt, chunk) - exact
        assert 0 < ours.square().mean().sqrt() < 1.3 * theirs


@pytest.mark.parametrize("kind", ["qwen3_next", "qwen3_5_moe"])
def test_mixtures_in_half_precision_are_as_close_for_most_tokens(tmp_path: Path, kind: str) -> None:
    """A rounded router logit may choose another expert, there or here: medians of the rows."""
    reference = save_model(tmp_path, kind)
    prompt = random_prompt(53)
    exact = expected_logits(reference, prompt)
    theirs = expected_logits(reference.bfloat16(), prompt) - exact
    ours = ContiguousRunner(open_model(tmp_path, torch.bfloat16), 1, 64).prefill(prompt) - exact
    row_errors = [error.square().mean(dim=-1).sqrt() for error in (ours, theirs)]
    assert 0 < row_errors[0].median() < 1.3 * row_errors[1].median()


def logits(folder: Path) -> torch.Tensor:
    return ContiguousRunner(open_model(folder), 1, 32).prefill(random_prompt(20))


def change_weights(folder: Path, change: Any) -> None:
    """Write the checkpoint again as `change` (of a dictionary of tensors) gives it."""
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, {"format": "pt"})


@pytest.mark.parametrize("kind", ["qwen3_next", "qwen3_5_moe", "qwen3_5_moe_images"])
def test_experts_in_one_tensor_are_those_one_by_one(tmp_path: Path, kind: str) -> None:
    reference = save_model(tmp_path, kind)
    one_by_one = logits(tmp_path)
    reference.save_pretrained(tmp_path, save_original_format=False)
    names = load_file(tmp_path / "model.safetensors").keys()
    assert any(name.endswith("mlp.experts.gate_up_proj") for name in names)
    assert not any(".experts.0." in name for name in names)
    assert torch.equal(logits(tmp_path), one_by_one)


@pytest.mark.parametrize("kind", ["qwen3_next", "qwen3_5", "qwen3_5_images"])
def test_layers_that_predict_further_tokens_are_left_aside(tmp_path: Path, kind: str) -> None:
    save_model(tmp_path, kind)
    without = logits(tmp_path)
    names = ("mtp.fc.weight", "mtp.norm.weight", "mtp.layers.0.mlp.experts.gate_up_proj")
    further = {name: torch.ones(8, 8) for name in names}
    change_weights(tmp_path, lambda tensors: tensors | further)
    assert torch.equal(logits(tmp_path), without)
    change_weights(tmp_path, lambda tensors: tensors | {"mtq.fc.weight": torch.ones(8, 8)})
    with pytest.raises(WeightError, match=r"not known to this architecture: mtq\.fc\.weight"):
        open_model(tmp_path)


def test_images_are_left_aside_where_a_folder_has_a_part_for_them(tmp_path: Path) -> None:
    save_model(tmp_path, "qwen3_5")
    change_weights(tmp_path, lambda tensors: tensors | {"visual.norm.weight": torch.ones(8)})
    with pytest.raises(WeightError, match=r"not known .*: visual\.norm\.weight"):
        open_model(tmp_path)


def test_names_of_the_text_part_may_have_its_prefix_without_an_image_part(tmp_path: Path) -> None:
    save_model(tmp_path, "qwen3_5")
    plain = logits(tmp_path)

    def rename(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {n.replace("model.", "model.language_model.", 1): t for n, t in tensors.items()}

    change_weights(tmp_path, rename)
    assert torch.equal(logits(tmp_path), plain)
    twice = {"model.norm.weight": torch.ones(64)}
    change_weights(tmp_path, lambda tensors: tensors | twice)
    with pytest.raises(ValueError, match=r"beginning with model\.language_model\. and without"):
        open_model(tmp_path)


def test_older_rope_settings_mean_the_same(tmp_path: Path) -> None:
    """Qwen3-Next's folder names them one by one, and its linear layers by their interval."""
    save_model(tmp_path, "qwen3_next", rope_parameters={"rope_theta": 5e4, "rope_type": "default"})
    new_form = logits(tmp_path)
    file = tmp_path / "config.json"
    values = json.loads(file.read_text())
    values |= {"rope_theta": 5e4, "partial_rotary_factor": 0.25, "full_attention_interval": 3}
    del values["rope_parameters"], values["layer_types"]
    file.write_text(json.dumps(values | {"rope_scaling": None}))
    assert torch.equal(logits(tmp_path), new_form)


@pytest.mark.parametrize("kind", ["qwen3_next", "qwen3_5"])
def test_chunks_of_every_size_give_the_same_logits(tmp_path: Path, kind: str) -> None:
    reference = save_model(tmp_path, kind)
    model, prompt = open_model(tmp_path), random_prompt(131)
    expected = expected_logits(reference, prompt)
    for chunk in range(1, 131):
        parts = ContiguousRunner(model, 1, 131).prefill(prompt, chunk)
        torch.testing.assert_close(parts, expected, **HYBRID_TOLERANCE)
