# SPDX-License-Identifier: Apache-2.0
"""Experts of a checkpoint: a tensor of each, or all in one; random ones; those elsewhere."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from rtp_llm.config.model_settings import ModelSettings
from rtp_llm.device import resolve_device
from rtp_llm.layers.moe import LocalDispatcher
from rtp_llm.loader import WeightError, explain
from rtp_llm.models.config import UnsupportedModelError
from rtp_llm.testing.models.open_model import open_model as load
from rtp_llm.testing.models.transformers_models import save_model

EXPERTS, INNER = 8, 48


@pytest.fixture
def folder(tmp_path):
    save_model(tmp_path, "qwen3_moe", num_hidden_layers=2)
    return tmp_path


def stack_experts(folder):
    """Rewrites the checkpoint as transformers 5 keeps it in memory."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    for layer in range(2):
        at = f"model.layers.{layer}.mlp.experts"

        def taken(part, at=at):
            return torch.stack([weights.pop(f"{at}.{e}.{part}.weight") for e in range(EXPERTS)])

        weights[f"{at}.gate_up_proj"] = torch.cat([taken("gate_proj"), taken("up_proj")], dim=1)
        weights[f"{at}.down_proj"] = taken("down_proj")
    save_file(weights, file)
    return weights


def test_both_forms_give_the_same_weights(folder):
    apart = load(folder).state_dict()
    weights = stack_experts(folder)
    together = load(folder).state_dict()
    assert apart.keys() == together.keys()
    assert all(torch.equal(apart[name], together[name]) for name in apart)
    gate_up = together["model.layers.1.mlp.experts.gate_up.weight"]
    assert torch.equal(gate_up, weights["model.layers.1.mlp.experts.gate_up_proj"])


def test_a_missing_expert_is_named(folder):
    file = folder / "model.safetensors"
    weights = load_file(file)
    del weights["model.layers.1.mlp.experts.5.up_proj.weight"]
    save_file(weights, file)
    with pytest.raises(WeightError, match=r"missing: model\.layers\.1\.mlp\.experts\.5\.up_proj"):
        load(folder)


class Halves:
    """Every other expert is here."""

    def dispatcher(self, index, config):
        dispatcher = LocalDispatcher(config.num_experts)
        dispatcher.local_experts = tuple(range(index % 2, config.num_experts, 2))
        return dispatcher

    def steps(self, index, config):
        return ()


@pytest.mark.parametrize("stacked", [False, True])
def test_experts_of_other_processes_are_not_read(folder, stacked):
    whole = load(folder)
    if stacked:
        stack_experts(folder)
    half = load(folder, experts=Halves())
    for layer, (part, all_of_them) in enumerate(
        zip(half.model.layers, whole.model.layers, strict=True)
    ):
        for name in ("gate_up", "down"):
            kept = getattr(part.mlp.experts, name).weight
            assert kept.shape[0] == EXPERTS // 2
            expected = getattr(all_of_them.mlp.experts, name).weight[layer % 2 :: 2]
            assert torch.equal(kept, expected)


def test_random_experts_need_no_files(folder):
    (folder / "model.safetensors").unlink()
    for experts in (None, Halves()):
        block = load(folder, load_format="dummy", experts=experts).model.layers[0].mlp
        assert 0.015 < block.experts.gate_up.weight.std() < 0.025
        assert not torch.equal(block.experts.down.weight[0], block.experts.down.weight[1])


def test_what_cannot_be_computed_is_refused(folder):
    with pytest.raises(UnsupportedModelError, match="plain: it takes no int8 weights"):
        load(folder, quantization="int8")
    with pytest.raises(UnsupportedModelError, match="triton: its tiles were chosen"):
        load(folder, moe_strategy="triton")


def test_the_explanation_knows_what_was_asked_for(folder):
    settings = ModelSettings(moe_strategy="plain")
    text = explain(folder, device=resolve_device("cpu"), settings=settings)
    assert "plain (priority 0): chosen by --moe-strategy" in text


def test_a_number_of_experts_that_makes_no_sense_is_named(folder):
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "num_experts_per_tok": 9}))
    with pytest.raises(ValueError, match="num_experts_per_tok"):
        load(folder)
