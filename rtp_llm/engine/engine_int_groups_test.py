# SPDX-License-Identifier: Apache-2.0
"""GPTQ, AWQ and packed checkpoints through the whole engine on the CPU, kept as they are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rtp_llm.layers.linear.int_groups import IntGroupsProduct
from rtp_llm.layers.weights.int_formats import Awq, Gptq, IntGroups, PackQuantized
from rtp_llm.layers.weights.stacked import StackedLinearWeights
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.contiguous_runner import ContiguousRunner
from rtp_llm.testing.models.int_checkpoints import store_as_integers
from rtp_llm.testing.models.open_model import open_model
from rtp_llm.testing.models.transformers_models import random_prompt, save_model

PROMPTS = [random_prompt(length, seed=length) for length in (5, 50)]
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}
PACKED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": True},
        }
    },
    "ignore": ["lm_head"],
}
CASES: list[tuple[dict[str, Any], IntGroups]] = [
    ({**GPTQ, "desc_act": True}, Gptq(group=32, ordered=True)),
    ({**GPTQ, "bits": 8, "checkpoint_format": "gptq_v2"}, Gptq(8, 32, zero_added=0)),
    ({"quant_method": "awq", "bits": 4, "group_size": 32}, Awq(group=32)),
    (PACKED, PackQuantized(group=32)),
]


PACKED_NAMES = ("qweight", "weight_packed")


def answers(engine: TinyEngine) -> list[list[int]]:
    request_ids = [engine.add(prompt, max_tokens=12, ignore_eos=True) for prompt in PROMPTS]
    engine.run()
    engine.assert_all_free()
    return [engine.outcomes[request_id, 0].tokens for request_id in request_ids]


@pytest.mark.parametrize(("config", "stored"), CASES, ids=["gptq", "gptq_v2", "awq", "packed"])
def test_weights_stay_packed_and_logits_are_near_those_of_floats(
    config: dict[str, Any], stored: IntGroups, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_model(folder, "qwen3", seed=7, hidden_size=128, intermediate_size=192)
    wide = store_as_integers(folder, config, stored, torch.bfloat16)
    engine = TinyEngine(folder, dtype="bfloat16")
    answer = answers(engine)[1]
    files = load_file(folder / "model.safetensors")
    packed = sum(each.nbytes for name, each in files.items() if name.endswith(PACKED_NAMES))
    model = engine.built.worker.runner.model
    held = [each.weight.nbytes for each in model.modules() if isinstance(each, IntGroupsProduct)]
    # qkv, output, gate_up and down of each layer, whose columns are a multiple of 64.
    assert (len(held), sum(held)) == (4 * model.config.num_layers, packed)
    floats = open_model(wide, torch.bfloat16)
    runners = [ContiguousRunner(each, 1, 64) for each in (model, floats)]
    # The answer's tokens, so that decoding is compared too.
    tokens = PROMPTS[1] + answer
    kept, exact = (runner.prefill(tokens) for runner in runners)
    # 8 bits of activations; the tiny model's random weights magnify them.
    assert (kept - exact).std() <= 0.05 * exact.std()


@pytest.mark.parametrize(("config", "stored"), CASES, ids=["gptq", "gptq_v2", "awq", "packed"])
def test_experts_stay_packed_unless_their_columns_are_in_another_order(
    config: dict[str, Any], stored: IntGroups, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_model(folder, "qwen3_moe", seed=7, moe_intermediate_size=64)
    wide = store_as_integers(folder, config, stored, torch.bfloat16)
    kept, floats = (open_model(each, torch.bfloat16) for each in (folder, wide))
    experts = [each for each in kept.modules() if isinstance(each, StackedLinearWeights)]
    packed = {torch.bfloat16} if stored.ordered else {torch.int8}
    assert {each.weight.dtype for each in experts} == packed
    runners = [ContiguousRunner(each, 1, 64) for each in (kept, floats)]
    ours, exact = (runner.prefill(PROMPTS[1]) for runner in runners)
    # A router chooses another expert now and then.
    assert (ours - exact).abs().median() <= 0.05 * exact.std()
