# SPDX-License-Identifier: Apache-2.0
"""The draft head that is shipped: its layout, and how many of its drafts the demo accepts."""

from __future__ import annotations

import json
import pathlib

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import Qwen3ForCausalLM

from example.demo_model.drafts_for_tests import drafts_as_served
from example.demo_model.served_drafts_for_tests import assert_served_drafts
from example.demo_model.training import data, eagle3
from example.demo_model.training.acceptance import acceptance_length

torch.set_num_threads(2)

HEAD = pathlib.Path(__file__).parent
TARGET = HEAD.parent / "demo_model"
FLOOR = 2.2


def test_the_folder_is_small_enough_to_live_in_the_repository():
    assert sum(file.stat().st_size for file in HEAD.iterdir() if file.is_file()) <= 8 * 2**20


def test_the_layout_is_that_of_eagle3_heads():
    config = json.loads((HEAD / "config.json").read_text())
    target = json.loads((TARGET / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["target_hidden_size"] == target["hidden_size"]
    assert config["vocab_size"] == target["vocab_size"]
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 3, 5]
    tensors = load_file(HEAD / "model.safetensors")
    parts = [
        "hidden_norm.weight", "input_layernorm.weight", "mlp.down_proj.weight",
        "mlp.gate_proj.weight", "mlp.up_proj.weight", "post_attention_layernorm.weight",
        "self_attn.k_proj.weight", "self_attn.o_proj.weight", "self_attn.q_proj.weight",
        "self_attn.v_proj.weight",
    ]  # fmt: skip
    names = [f"midlayer.{part}" for part in parts]
    assert sorted(tensors) == sorted(
        [*names, "d2t", "fc.weight", "lm_head.weight", "norm.weight", "t2d"]
    )
    drafted = torch.arange(config["draft_vocab_size"]) + tensors["d2t"]
    assert torch.equal(drafted, tensors["t2d"].nonzero().flatten())
    kinds = {t.dtype for name, t in tensors.items() if name not in ("d2t", "t2d")}
    assert kinds == {torch.bfloat16}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TARGET / "tokenizer.json"))


@pytest.fixture(scope="module")
def target() -> Qwen3ForCausalLM:
    return Qwen3ForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()


@pytest.mark.parametrize("kind", ["sums", "facts", "calls"])
def test_drafts_are_accepted(tokenizer, target, kind):
    head = eagle3.load_head(HEAD, target)
    prompts = data.held_out_prompts(tokenizer)[kind][:60]
    assert acceptance_length(target, head, eagle3.target_states, tokenizer, prompts) >= FLOOR


def test_acceptance_is_what_drafting_step_by_step_gives(tokenizer, target):
    head = eagle3.load_head(HEAD, target)
    emitted = verified = 0
    questions = ["What is 12 + 37?", "Hi", "Tell me a story about a fox."]
    prompts = [data.prompt_ids(tokenizer, question) for question in questions]
    for prompt in (torch.tensor([ids]) for ids in prompts):
        (text,) = target.generate(prompt, do_sample=False, max_new_tokens=128).tolist()
        hidden, _ = eagle3.target_states(target, torch.tensor([text]))
        known = prompt.shape[1] + 1
        while known < len(text):
            drafts = drafts_as_served(head, text[:known], hidden, steps=3)
            pairs = zip(drafts, text[known:], strict=False)
            right = next((i for i, (draft, true) in enumerate(pairs) if draft != true), 3)
            known, verified = known + right + 1, verified + 1
            emitted += right + 1 - max(known - len(text), 0)
    measured = acceptance_length(target, head, eagle3.target_states, tokenizer, prompts)
    assert measured == pytest.approx(emitted / verified)


@pytest.mark.parametrize("kind", ["sums", "facts", "calls"])
def test_an_engine_drafts_as_training_measured(kind):
    assert_served_drafts(TARGET, kind, speculative="eagle3", speculative_model=str(HEAD))
