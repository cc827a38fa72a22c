# SPDX-License-Identifier: Apache-2.0
"""FP8 checkpoints and quantised weights of models with gated delta nets."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rtp_llm.layers.linear.base import PlainLinear
from rtp_llm.layers.linear.fp8 import Fp8Linear
from rtp_llm.loader import WeightError
from rtp_llm.models.causal_lm import CausalLM
from rtp_llm.quantization.int8 import dequantize_rows, quantize_rows
from rtp_llm.testing.fp8_products import multiply_fp8_on_cpu
from rtp_llm.testing.models.contiguous_runner import ContiguousRunner
from rtp_llm.testing.models.expert_layouts import stack_experts
from rtp_llm.testing.models.fp8_checkpoints import CHANNELS, store_as_fp8
from rtp_llm.testing.models.open_model import open_model
from rtp_llm.testing.models.parity import HYBRID_TOLERANCE
from rtp_llm.testing.models.transformers_models import (
    clear_prompt,
    expected_logits,
    random_prompt,
    save_model,
)

torch.set_num_threads(2)

WIDE = {
    "hidden_size": 256,
    "head_dim": 128,
    "full_attention_interval": 2,
    "num_hidden_layers": 3,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}
MODELS: list[tuple[str, dict[str, Any]]] = [
    # The rows of a key head together in whole blocks; parts that are none; the text part.
    ("qwen3_next", WIDE),
    ("qwen3_5", {**WIDE, "hidden_size": 160, "linear_key_head_dim": 40}),
    ("qwen3_5_moe_images", {**WIDE, "moe_intermediate_size": 144}),
]
every_model = pytest.mark.parametrize(
    ("kind", "settings"), MODELS, ids=[kind for kind, _ in MODELS]
)


def make(
    folder: Path, kind: str, settings: dict[str, Any], **stored: Any
) -> tuple[Path, Path, Any]:
    """The folders of a model in FP8 and of the same one without, and that in transformers."""
    (folder / "fp8").mkdir()
    reference = save_model(folder / "fp8", kind, seed=3, **settings)
    wide = store_as_fp8(folder / "fp8", **stored)
    theirs = type(reference).from_pretrained(wide, dtype=torch.float32, attn_implementation="eager")
    theirs.generation_config.eos_token_id = None
    return folder / "fp8", wide, theirs.eval()


def logits(model: CausalLM, prompt: list[int], chunk: int | None = None) -> torch.Tensor:
    return ContiguousRunner(model, 1, 128).prefill(prompt, chunk)


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).square().mean().sqrt())


@every_model
def test_logits_and_tokens_are_those_of_transformers(
    tmp_path: Path, kind: str, settings: dict[str, Any]
) -> None:
    stored, _, theirs = make(tmp_path, kind, settings)
    model = open_model(stored)
    prompt, tokens = clear_prompt(theirs, 53, 32)
    expected = expected_logits(theirs, prompt)
    torch.testing.assert_close(logits(model, prompt), expected, **HYBRID_TOLERANCE)
    assert ContiguousRunner(model, 1, 128).greedy(prompt, 32, 16) == tokens


@every_model
def test_with_products_the_small_projections_stay_floats(
    tmp_path: Path, kind: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    multiply_fp8_on_cpu(monkeypatch.setattr)
    stored, wide, theirs = make(tmp_path, kind, settings, dtype=torch.bfloat16)
    model = open_model(stored, torch.bfloat16)
    first: Any = model.get_submodule("model.layers.0.linear_attn")
    assert type(first.in_proj) is type(first.out_proj) is Fp8Linear
    assert type(first.in_proj_ba) is PlainLinear
    full: Any = model.get_submodule("model.layers.1.self_attn")
    assert type(full.qkv_proj) is Fp8Linear
    prompt = random_prompt(40)
    exact = expected_logits(theirs, prompt)
    plain = logits(open_model(wide, torch.bfloat16), prompt)
    for chunk in (None, 7):
        error = distance(logits(model, prompt, chunk), exact)
        assert distance(plain, exact) < error < 0.4 * float(exact.square().mean().sqrt())


@every_model
def test_quantising_while_loading_is_as_close_as_what_is_stored(
    tmp_path: Path, kind: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    multiply_fp8_on_cpu(monkeypatch.setattr)
    reference = save_model(tmp_path, kind, seed=3, **settings)
    model = open_model(tmp_path, torch.bfloat16, quantization="fp8")
    first: Any = model.get_submodule("model.layers.0.linear_attn")
    assert type(first.in_proj) is Fp8Linear
    assert type(first.in_proj_ba) is PlainLinear
    prompt = random_prompt(40)
    exact = expected_logits(reference, prompt)
    assert 0 < distance(logits(model, prompt), exact) < 0.4 * float(exact.square().mean().sqrt())


@pytest.mark.parametrize("kind", ["qwen3_5", "qwen3_next"])
@pytest.mark.parametrize(("quantization", "most"), [("int8", 1.1), ("w8a8_int8", 2.5)])
def test_int8_weights_are_as_close_as_their_rounding_allows(
    tmp_path: Path, kind: str, quantization: str, most: float
) -> None:
    """The error of logits, in errors of a float32 model whose weights alone are rounded."""
    reference = save_model(tmp_path, kind, mlp_only_layers=[0, 1, 2, 3])
    prompt = random_prompt(53)
    exact = expected_logits(reference, prompt)
    ours = logits(open_model(tmp_path, quantization=quantization), prompt)
    with torch.no_grad():
        for name, module in reference.named_modules():
            if isinstance(module, torch.nn.Linear) and not name.endswith(("_a", "_b", "_ba")):
                module.weight.copy_(dequantize_rows(*quantize_rows(module.weight)))
    rounded = distance(expected_logits(reference, prompt), exact)
    assert 0.9 * rounded < distance(ours, exact) < most * rounded


def test_experts_in_one_tensor_have_scales_in_one_tensor(tmp_path: Path) -> None:
    """As transformers 5 keeps FP8 experts."""
    kind, settings = "qwen3_5_moe_images", {**WIDE, "moe_intermediate_size": 256}
    folder, _, _ = make(tmp_path, kind, settings)
    prompt = random_prompt(20)
    one_by_one = logits(open_model(folder), prompt)
    file = folder / "model.safetensors"
    save_file(stack_experts(load_file(file)), file, {"format": "pt"})
    assert torch.equal(logits(open_model(folder), prompt), one_by_one)


def test_scales_of_stacked_experts_that_share_blocks_are_not_read(tmp_path: Path) -> None:
    folder, _, _ = make(tmp_path, "qwen3_5_moe", {**WIDE, "moe_intermediate_size": 100})
    file = folder / "model.safetensors"
    save_file(stack_experts(load_file(file)), file, {"format": "pt"})
    with pytest.raises(WeightError, match=r"not known .*experts\.gate_up_proj_scale_inv"):
        open_model(folder)


def test_targets_have_the_names_that_are_in_the_files(tmp_path: Path) -> None:
    """Those of the text part have its prefix."""
    config = copy.deepcopy(CHANNELS.config)
    config["config_groups"]["group_0"]["targets"] = [r"re:model\.language_model\.layers\.\d"]
    stored, wide, _ = make(
        tmp_path, "qwen3_5_images", {"num_hidden_layers": 3}, style=replace(CHANNELS, config=config)
    )
    prompt = random_prompt(20)
    expected = logits(open_model(wide), prompt)
    torch.testing.assert_close(logits(open_model(stored), prompt), expected, **HYBRID_TOLERANCE)
