# SPDX-License-Identifier: Apache-2.0
"""DeepSeek's models against transformers: both forms of attention, chunks, experts, rope."""

from __future__ import annotations

import json

import pytest
import torch

from rtp_llm.attention import indexer, mla_step
from rtp_llm.models.config import ModelConfigError
from rtp_llm.models.config_reader import read_model_config
from rtp_llm.testing.models.contiguous_runner import ContiguousRunner
from rtp_llm.testing.models.fp8_checkpoints import store_as_fp8
from rtp_llm.testing.models.open_model import open_model
from rtp_llm.testing.models.parity import TOLERANCE, check_tokens_and_chunks
from rtp_llm.testing.models.transformers_models import (
    expected_logits,
    random_prompt,
    save_model,
)

torch.set_num_threads(2)

YARN = {
    "rope_type": "yarn",
    "rope_theta": 5e4,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "mscale": 0.7,
    "mscale_all_dim": 1.4,
}
GROUPS = {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}
DENSE = {"first_k_dense_replace": 3}
KINDS = pytest.mark.parametrize("kind", ["deepseek_v2", "deepseek_v3"])


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("deepseek_v2", {"q_lora_rank": None}),
        ("deepseek_v2", GROUPS | {"rope_parameters": YARN}),
        ("deepseek_v2", DENSE | {"v_head_dim": 48, "kv_lora_rank": 24, "attention_bias": True}),
        ("deepseek_v3", {"norm_topk_prob": False}),
        ("glm4_moe_lite", {}),
        ("deepseek_v3", {"rope_parameters": YARN, "attention_bias": True}),
        ("deepseek_v3", {"rope_interleave": False, "num_attention_heads": 5, "hidden_size": 40}
         | {"num_key_value_heads": 5, "first_k_dense_replace": 0}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)  # fmt: skip
def test_every_kind(tmp_path, kind, settings):
    reference = save_model(tmp_path, kind, **settings)
    check_tokens_and_chunks(open_model(tmp_path), reference)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("deepseek_v32", {}),
        ("deepseek_v32", {"index_topk": 40, "rope_parameters": YARN, "attention_bias": True}),
        ("glm_moe_dsa", {}),
        ("glm_moe_dsa", {"index_topk_pattern": None, "first_k_dense_replace": 0}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_selected_tokens(tmp_path, kind, settings):
    """From the first token past `index_topk` on, attention sees a selection."""
    reference = save_model(tmp_path, kind, **settings)
    check_tokens_and_chunks(open_model(tmp_path), reference, chunks=(1, 7, 33))


def test_a_long_step_selects_for_some_tokens_after_the_other(tmp_path, monkeypatch):
    save_model(tmp_path, "deepseek_v32")
    model, prompt = open_model(tmp_path), random_prompt(53)
    whole = ContiguousRunner(model, 1, 64).prefill(prompt)
    monkeypatch.setattr(indexer, "_LOGIT_BYTES", 4 * len(prompt) * 10)
    assert torch.equal(ContiguousRunner(model, 1, 64).prefill(prompt), whole)


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("deepseek_v2", "topk_method", "noaux_tc"),
        ("deepseek_v2", "scoring_func", "sigmoid"),
        ("deepseek_v2", "norm_topk_prob", True),
        ("deepseek_v3", "topk_method", "greedy"),
        ("deepseek_v3", "scoring_func", "softmax"),
    ],
)
def test_another_selection_of_experts_is_refused(tmp_path, kind, key, value):
    save_model(tmp_path, kind)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {key: value}))
    with pytest.raises(ModelConfigError, match=f"{key} must be .* not {value!r}"):
        read_model_config(tmp_path)


@KINDS
def test_both_forms_of_attention_agree(tmp_path, kind, monkeypatch):
    """Forced on the same prompts, whole and in chunks: all tokens expanded, none, or some."""
    save_model(tmp_path, kind)
    model = open_model(tmp_path)
    prompt = random_prompt(150)
    logits = {}
    for name, least in (("expanded", 1), ("absorbed", 10_000), ("as chosen", 32)):
        monkeypatch.setattr(mla_step, "LEAST_EXPANDED", least)
        for chunk in (150, 50):
            logits[name, chunk] = ContiguousRunner(model, 1, 160).prefill(prompt, chunk)
    for result in logits.values():
        torch.testing.assert_close(result, logits["absorbed", 150], **TOLERANCE)


@KINDS
def test_a_mixed_batch_gives_what_each_sequence_gives_alone(tmp_path, kind):
    """A long prompt is expanded in a batch with a chunk, a decode and an empty sequence."""
    save_model(tmp_path, kind)
    model = open_model(tmp_path)
    prompts = [random_prompt(length, seed=length) for length in (70, 41, 90, 3)]
    alone = [ContiguousRunner(model, 1, 96).prefill(prompt)[-1] for prompt in prompts]
    runner = ContiguousRunner(model, 4, 96)
    runner.step([[], prompts[1][:40], prompts[2][:85], []])
    logits = runner.step([prompts[0], prompts[1][40:], prompts[2][85:], prompts[3]])
    for ours, single in zip(logits, alone, strict=True):
        torch.testing.assert_close(ours[-1], single, **TOLERANCE)


@KINDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_has_the_same_bits_alone_and_in_a_batch(tmp_path, kind, dtype):
    save_model(tmp_path, kind)
    model = open_model(tmp_path, dtype)
    prompts = [random_prompt(length, seed=length) for length in (70, 3, 41, 1, 90, 5)]
    steps = [prompts] + [[[token]] * len(prompts) for token in (7, 8, 9)]
    together = ContiguousRunner(model, len(prompts), 96)
    logits = [[row[-1] for row in together.step(step)] for step in steps]
    for number in range(len(prompts)):
        alone = ContiguousRunner(model, 1, 96)
        for step, expected in zip(steps, logits, strict=True):
            assert torch.equal(alone.step([step[number]])[0][-1], expected[number])


@pytest.mark.parametrize("kind", ["deepseek_v2", "deepseek_v3", "deepseek_v32"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_close_as_transformers_is(tmp_path, kind, dtype):
    """With dense layers: a choice of experts that rounding changes says nothing of attention."""
    reference = save_model(tmp_path, kind, **DENSE)
    prompt = random_prompt(53)
    exact = expected_logits(reference, prompt)
    theirs = (expected_logits(reference.to(dtype), prompt) - exact).square().mean().sqrt()
    model = open_model(tmp_path, dtype)
    for chunk in (53, 7):
        ours = ContiguousRunner(model, 1, 64).prefill(prompt, chunk) - exact
        assert 0 < ours.square().mean().sqrt() < 2 * theirs


def test_layers_that_predict_further_tokens_are_left_out(tmp_path):
    reference = save_model(tmp_path, "deepseek_v3")
    values = json.loads((tmp_path / "config.json").read_text())
    values["num_hidden_layers"] = 2  # the third layer's tensors stay in the files
    values["num_nextn_predict_layers"] = 1
    (tmp_path / "config.json").write_text(json.dumps(values))
    prompt = random_prompt(20)
    logits = ContiguousRunner(open_model(tmp_path), 1, 32).prefill(prompt)
    del reference.model.layers[2]
    torch.testing.assert_close(logits, expected_logits(reference, prompt), **TOLERANCE)


def test_fp8_blocks_are_read(tmp_path):
    """All projections as published checkpoints have them; ranks that are no whole blocks."""
    stored = tmp_path / "fp8"
    stored.mkdir()
    save_model(stored, "deepseek_v3", q_lora_rank=144, kv_lora_rank=160, hidden_size=192)
    wide = store_as_fp8(stored, lambda name: "proj" in name)
    prompt = random_prompt(40)
    ours, theirs = (
        ContiguousRunner(open_model(folder), 1, 64).prefill(prompt, 33) for folder in (stored, wide)
    )
    assert torch.equal(ours, theirs)


def test_random_weights_and_int8_projections(tmp_path):
    save_model(tmp_path, "deepseek_v2", **DENSE)
    prompt = random_prompt(40)
    exact = ContiguousRunner(open_model(tmp_path), 1, 64).prefill(prompt)
    int8 = ContiguousRunner(open_model(tmp_path, quantization="int8"), 1, 64).prefill(prompt)
    error = (int8 - exact).square().mean().sqrt()
    assert 0 < error < 0.1 * exact.square().mean().sqrt()
    dummy = ContiguousRunner(open_model(tmp_path, load_format="dummy"), 1, 64)
    assert dummy.prefill(prompt).isfinite().all()
