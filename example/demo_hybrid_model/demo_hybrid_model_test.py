# SPDX-License-Identifier: Apache-2.0
"""The hybrid demo that is shipped: layout, answers, and how many drafts of its MTP layer count."""

from __future__ import annotations

import json
import pathlib

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import Qwen3_5MoeForCausalLM

from example.demo_model.answers_for_tests import assert_facts_and_stories, assert_sums
from example.demo_model.served_drafts_for_tests import assert_served_drafts
from example.demo_model.training import data, mtp
from example.demo_model.training.acceptance import acceptance_length
from rtp_llm import LLM

torch.set_num_threads(2)

MODEL = pathlib.Path(__file__).parent
DENSE = MODEL.parent / "demo_model"
FLOOR = 2.2


@pytest.fixture(scope="module")
def llm():
    with LLM(str(MODEL), dtype="float32", max_seq_len=256) as engine:
        yield engine


def test_the_folder_is_small_enough_to_live_in_the_repository():
    assert sum(file.stat().st_size for file in MODEL.iterdir() if file.is_file()) <= 8 * 2**20


@pytest.mark.parametrize(
    "name",
    ["tokenizer.json", "tokenizer_config.json", "generation_config.json"],
)
def test_both_demos_read_and_write_the_same_tokens(name):
    assert (MODEL / name).read_text() == (DENSE / name).read_text()


def test_the_template_is_that_without_tools():
    assert (MODEL / "chat_template.jinja").read_text() == data.CHAT_TEMPLATE


def test_the_layout_is_that_of_qwen3_5_moe():
    config = json.loads((MODEL / "config.json").read_text())
    assert config["architectures"] == ["Qwen3_5MoeForCausalLM"]
    assert config["model_type"] == "qwen3_5_moe_text" and config["mtp_num_hidden_layers"] == 1
    assert config["layer_types"].count("linear_attention") > config["num_hidden_layers"] / 2
    sizes = [config["num_experts"], 2 * config["moe_intermediate_size"], config["hidden_size"]]
    with safe_open(MODEL / "model.safetensors", "pt") as tensors:
        names = set(tensors.keys())
        for layer in ("model.layers.0", "mtp.layers.0"):
            experts = tensors.get_slice(f"{layer}.mlp.experts.gate_up_proj")
            assert experts.get_shape() == sizes and experts.get_dtype() == "BF16"
    own = {"mtp.fc.weight", "mtp.norm.weight"}
    own |= {f"mtp.pre_fc_norm_{of}.weight" for of in ("embedding", "hidden")}
    assert own <= names and "mtp.layers.0.self_attn.q_norm.weight" in names
    assert not any("lm_head" in name for name in names)


def test_held_out_sums_are_answered(llm):
    assert_sums(llm)


def test_facts_and_stories(llm):
    assert_facts_and_stories(llm)


@pytest.mark.parametrize("kind", ["sums", "facts"])
def test_drafts_are_accepted(kind):
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    target = Qwen3_5MoeForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    layer = mtp.load_mtp(MODEL, target)
    prompts = data.held_out_prompts(tokenizer)[kind][:60]
    assert acceptance_length(target, layer, mtp.target_states, tokenizer, prompts) >= FLOOR


@pytest.mark.parametrize("kind", ["sums", "facts"])
def test_an_engine_drafts_as_training_measured(kind):
    assert_served_drafts(MODEL, kind, speculative="mtp")
