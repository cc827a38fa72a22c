# SPDX-License-Identifier: Apache-2.0
"""Tests of the forward pass itself: which operators it calls, and that it never asks the device."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rtp_llm import ops
from rtp_llm.attention import CacheDtypes
from rtp_llm.testing.models.contiguous_runner import ContiguousRunner
from rtp_llm.testing.models.open_model import open_model
from rtp_llm.testing.models.transformers_models import random_prompt, save_model

LAYERS = 3
# Views cost no pass over the data, logits become float32; all else must be an operator of ours.
FREE = {"view", "slice", "flatten", "to", "_to_copy"}


class Calls(TorchDispatchMode):
    """Counts the operators that run within it, by name."""

    def __init__(self):
        super().__init__()
        self.ours, self.others = Counter(), Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        namespace, _, name = function._schema.name.partition("::")
        counter = self.ours if namespace == "rtp_llm" else self.others
        counter[name] += 1
        return function(*args, **(kwargs or {}))


def calls(model, lengths):
    """The calls of one step whose sequences bring `lengths` tokens."""
    ops.load()  # not within the count
    runner = ContiguousRunner(model, len(lengths), 64)
    batch = runner._batch([random_prompt(length) for length in lengths])
    with torch.inference_mode(), Calls() as counted:
        hidden = model(batch)
        model.compute_logits(hidden)
    return counted


PER_LAYER = {
    "fused_add_rms_norm": 2,
    "linear": 4,
    "rope_kv_write": 1,
    "paged_attention": 1,
    "silu_and_mul": 1,
}


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_a_step_makes_a_fixed_number_of_calls(tmp_path, kind, quantization):
    save_model(tmp_path, kind, num_hidden_layers=LAYERS)
    model = open_model(tmp_path, quantization=quantization)
    expected = Counter({name: LAYERS * count for name, count in PER_LAYER.items()})
    if kind == "qwen3":
        expected["qk_rms_norm"] = LAYERS
    # The first norm has nothing to add, the last one comes after the layers, the head is a product.
    expected += Counter({"embedding": 1, "rms_norm": 1, "linear": 1})
    if quantization == "int8":
        expected["int8_linear"] = expected.pop("linear")
    for lengths in ([1], [20, 1, 1], [1] * 16):
        counted = calls(model, lengths)
        assert counted.ours == expected
        assert set(counted.others) <= FREE, f"a hidden pass or a wait: {counted.others}"


@pytest.mark.parametrize(
    ("kind", "changes", "groups"),
    [
        ("llama", {}, 1),
        ("deepseek_v3", {}, 1),
        ("mixtral", {"sliding_window": 24}, 1),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}, 2),
    ],
)
def test_layers_state_the_cache_that_was_planned_without_them(tmp_path, kind, changes, groups):
    save_model(tmp_path, kind, **changes)
    model = open_model(tmp_path)
    stated = model.cache_groups()
    assert stated == type(model).groups_of(model.config, CacheDtypes(torch.float32, torch.float32))
    assert len(stated.groups) == groups
    assert sum(len(group.layers) for group in stated.groups) == model.config.num_layers
