# SPDX-License-Identifier: Apache-2.0
"""MTP layers of mixtures as they are published: experts stacked, or one by one and in FP8.

Qwen3.6-35B-A3B has its own experts and those of its MTP layer in one tensor each; in
Qwen3.6-35B-A3B-FP8 every expert has tensors of its own. Both are the text part of folders for
images, and name it in every tensor but those of MTP.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rtp_llm.testing.models.contiguous_runner import ContiguousRunner
from rtp_llm.testing.models.expert_layouts import split_experts, stack_experts
from rtp_llm.testing.models.fp8_checkpoints import projections, store_as_fp8
from rtp_llm.testing.models.mtp_models import save_mtp_model
from rtp_llm.testing.models.open_model import open_model
from rtp_llm.testing.models.parity import HYBRID_TOLERANCE
from rtp_llm.testing.models.transformers_models import random_prompt

torch.set_num_threads(2)

TEXT, IMAGES = "model.language_model.", "model.visual."
SETTINGS: dict[str, Any] = {"num_hidden_layers": 3, "head_dim": 128, "linear_value_head_dim": 32}


def change(folder: Path, one_by_one: bool) -> None:
    """Give a folder of Qwen3.5-MoE the names and the layout of a published one."""
    file = folder / "model.safetensors"
    lay_out = split_experts if one_by_one else stack_experts
    tensors = {f"{IMAGES}pos_embed.weight": torch.ones(4, 8)}
    for name, tensor in lay_out(load_file(file)).items():
        tensors[name.replace("model.", TEXT, 1) if name.startswith("model.") else name] = tensor
    save_file(tensors, file, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    outer = {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "image_token_id": 5,
        "model_type": "qwen3_5_moe",
        "text_config": config | {"output_gate_type": "swish"},
        "tie_word_embeddings": config["tie_word_embeddings"],
        "vision_config": {"depth": 1},
    }
    (folder / "config.json").write_text(json.dumps(outer))


def drafted(folder: Path, hidden: Tensor, prompt: list[int]) -> tuple[Tensor, Tensor]:
    """Logits of the model for a prompt, and those of its MTP layer."""
    model = open_model(folder, mtp=True)
    runner = ContiguousRunner(model, 1, 64)
    return runner.draft(prompt[1:], hidden), ContiguousRunner(model, 1, 64).prefill(prompt)


@pytest.mark.parametrize("one_by_one", [False, True], ids=["stacked", "one by one"])
def test_floats(tmp_path: Path, one_by_one: bool) -> None:
    _, oracle = save_mtp_model(tmp_path, "qwen3_5_moe", **SETTINGS)
    change(tmp_path, one_by_one)
    names = load_file(tmp_path / "model.safetensors").keys()
    stacks = {name for name in names if name.endswith("experts.gate_up_proj")}
    assert len(stacks) == (0 if one_by_one else 4)
    prompt = random_prompt(30)
    hidden = oracle.hidden_states(prompt[:-1])
    drafts, logits = drafted(tmp_path, hidden, prompt)
    expected = oracle.logits(oracle(prompt[1:], hidden))
    torch.testing.assert_close(drafts, expected, **HYBRID_TOLERANCE)
    whole = oracle.logits(oracle.hidden_states(prompt))
    torch.testing.assert_close(logits, whole, **HYBRID_TOLERANCE)


@pytest.mark.parametrize("of_mtp", [False, True], ids=["MTP in floats", "MTP in FP8"])
def test_fp8_leaves_modules_out_by_their_published_names(tmp_path: Path, of_mtp: bool) -> None:
    """modules_to_not_convert has the names of tensors, norms and the part for images too."""
    folder = tmp_path / "fp8"
    _, oracle = save_mtp_model(folder, "qwen3_5_moe", **SETTINGS)
    change(folder, one_by_one=True)
    wide = store_as_fp8(
        folder, lambda name: projections(name) and (of_mtp or not name.startswith("mtp."))
    )
    config = json.loads((folder / "config.json").read_text())
    left = config["quantization_config"]["modules_to_not_convert"]
    assert {f"{TEXT}layers.0.linear_attn.in_proj_a", f"{TEXT}layers.1.mlp.gate"} <= set(left)
    assert {f"{IMAGES}pos_embed", "lm_head", "mtp.fc"} <= set(left)
    prompt = random_prompt(30)
    hidden = oracle.hidden_states(prompt[:-1])
    for ours, theirs in zip(
        drafted(folder, hidden, prompt), drafted(wide, hidden, prompt), strict=True
    ):
        torch.testing.assert_close(ours, theirs, **HYBRID_TOLERANCE)
