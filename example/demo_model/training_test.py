# SPDX-License-Identifier: Apache-2.0
"""The training script at toy size: every part runs, continues and is measured as it is served."""

from __future__ import annotations

import json
import pathlib
from dataclasses import replace
from functools import partial
from itertools import islice

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, Qwen3_5MoeForCausalLM, Qwen3ForCausalLM

from example.demo_model.drafts_for_tests import drafts_as_served
from example.demo_model.training import data, eagle3, mtp, train
from example.demo_model.training.acceptance import step_lengths
from example.demo_model.training.chain import draft_logits
from example.demo_model.training.loop import Fit, Recipe
from example.demo_model.training.models import (
    DenseShape,
    HybridShape,
    make_dense,
    make_hybrid,
    start_from_dense,
)

torch.set_num_threads(2)

HERE = pathlib.Path(__file__).parent
DENSE = DenseShape(hidden=32, intermediate=48, layers=4, heads=2, kv_heads=1, head_dim=16)
HYBRID = HybridShape(
    hidden=32, layers=2, interval=2, heads=2, kv_heads=1, head_dim=16, linear_key_heads=1,
    linear_value_heads=2, linear_head_dim=8, experts=4, expert=16, shared_expert=16,
)  # fmt: skip
HEAD = eagle3.HeadShape(intermediate=48, draft_vocabulary=200)
RECIPE = Recipe(steps=4, rows=1, lr=1e-3, report=100, save=1)
QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(HERE / "tokenizer.json"))


@pytest.fixture(scope="module")
def dense(tokenizer: Tokenizer) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    return make_dense(tokenizer, DENSE).eval()


@pytest.fixture(scope="module")
def hybrid(tokenizer: Tokenizer) -> Qwen3_5MoeForCausalLM:
    torch.manual_seed(0)
    return make_hybrid(tokenizer, HYBRID).eval()


def make_heads(tokenizer, dense, hybrid):
    """Both kinds with their targets, from the same seed each time."""
    torch.manual_seed(1)
    return [
        (dense, eagle3.make_head(dense, tokenizer, HEAD), eagle3.target_states),
        (hybrid, mtp.MtpLayer(hybrid), mtp.target_states),
    ]


def equal_states(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    states = one.state_dict(), other.state_dict()
    return all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("kind", [0, 1], ids=["eagle3", "mtp"])
def test_an_interrupted_head_ends_as_an_uninterrupted_one(tmp_path, tokenizer, dense, hybrid, kind):
    target, whole, states = make_heads(tokenizer, dense, hybrid)[kind]
    train.train_head(target, whole, states, tokenizer, RECIPE, tmp_path / "whole.pt", {})
    _, untouched, _ = make_heads(tokenizer, dense, hybrid)[kind]
    assert not equal_states(whole, untouched)
    for stop_at in (1, 3, None):
        _, head, _ = make_heads(tokenizer, dense, hybrid)[kind]
        train.train_head(target, head, states, tokenizer, RECIPE, tmp_path / "cut.pt", {}, stop_at)
    assert equal_states(head, whole)


def loss_of(model: torch.nn.Module, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return model(input_ids=ids, labels=labels).loss


def test_an_interrupted_model_ends_as_an_uninterrupted_one(tmp_path, tokenizer):
    recipe = replace(RECIPE, schedule="trapezoid")
    ended = []
    for stops in ((None,), (2, None)):
        torch.manual_seed(0)
        model = make_hybrid(tokenizer, HYBRID)
        for stop_at in stops:
            stream = train.stream_of(tokenizer, recipe)
            fit = Fit(model, recipe, tmp_path / f"{len(stops)}.pt")
            fit.run(stream, partial(loss_of, model), str, stop_at)
        ended.append(model)
    assert equal_states(*ended)


def test_a_hybrid_of_full_attention_begins_as_the_dense_model(tokenizer, dense):
    shape = replace(HYBRID, layers=4, interval=1, shared_expert=DENSE.intermediate)
    model = make_hybrid(tokenizer, shape).eval()
    start_from_dense(model, dense)
    ids = torch.arange(30)[None] + 40
    with torch.inference_mode():
        torch.testing.assert_close(model(ids).logits, dense(ids).logits)


def test_other_settings_do_not_continue_a_run(tmp_path, tokenizer, dense):
    Fit(dense, RECIPE, tmp_path / "state.pt")._save()
    assert Fit(dense, replace(RECIPE, report=1), tmp_path / "state.pt").done == 0
    with pytest.raises(ValueError, match="Give the same settings or remove the file"):
        Fit(dense, replace(RECIPE, lr=1.0), tmp_path / "state.pt")


def test_one_step_is_what_transformers_layer_computes(hybrid, tokenizer, dense):
    """The MTP layer as an ordinary decoder layer over the same input."""
    _, (target, layer, states) = make_heads(tokenizer, dense, hybrid)
    ids = torch.arange(20)[None] + 40
    with torch.inference_mode():
        hidden, _ = states(target, ids)
        (scores,) = draft_logits(layer, ids, hidden, steps=1)
        embedded = target.model.embed_tokens(ids[:, 1:])
        parts = layer.pre_fc_norm_embedding(embedded), layer.pre_fc_norm_hidden(hidden[:, :-1])
        states = layer.fc(torch.cat(parts, -1))
        positions = torch.arange(19)[None]
        rotary = target.model.rotary_emb(states, positions)
        causal = torch.full((19, 19), -torch.inf).triu(1)[None, None]
        made = layer.layers[0](states, position_embeddings=rotary, attention_mask=causal)
        expected = target.lm_head(layer.norm(made))
    torch.testing.assert_close(scores[:, :-1], expected)


def test_the_head_attends_as_transformers_does(tokenizer, dense):
    """Its attention with inputs of twice the width, as LlamaAttention over the same weights."""
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

    head = eagle3.make_head(dense, tokenizer, HEAD)
    reference = LlamaAttention(head.config, layer_idx=0)
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        setattr(reference, name, getattr(head.midlayer.self_attn, name))
    inputs, positions = torch.randn(1, 9, 64), torch.arange(9) + 3
    rotary = LlamaRotaryEmbedding(head.config)(inputs, positions[None])
    causal = torch.full((9, 9), -torch.inf).triu(1)[None, None]
    expected, _ = reference(inputs, position_embeddings=rotary, attention_mask=causal)
    memory = eagle3.ChainMemory()
    torch.testing.assert_close(head.midlayer.self_attn(inputs, positions, memory), expected)


@pytest.mark.parametrize("kind", [0, 1], ids=["eagle3", "mtp"])
def test_chains_of_all_positions_are_those_of_each(tokenizer, dense, hybrid, kind):
    target, head, states = make_heads(tokenizer, dense, hybrid)[kind]
    text = data.prompt_ids(tokenizer, QUESTION)
    hidden, _ = states(target, torch.tensor([text]))
    for known in range(2, len(text)):
        drafts = drafts_as_served(head, text[:known], hidden, steps=3)
        ids = torch.tensor([[*text[:known], *drafts]])
        with torch.inference_mode():
            rows = torch.nn.functional.pad(hidden[:, :known], (0, 0, 0, 3))
            logits = draft_logits(head, ids, rows, steps=3)
        guessed = [int(head.draft_ids[of_step[0, known - 2].argmax()]) for of_step in logits]
        assert guessed == drafts


def test_lengths_of_steps_end_with_the_reply():
    text = [9, 9, 1, 2, 3, 4, 5]  # two of a prompt; the prefill gives the 1
    perfect = [[*text[j + 2 :], *[0] * (j + 2)] for j in range(3)]
    assert step_lengths(text, 2, perfect) == [4]
    assert step_lengths(text, 2, [[0] * 7] * 3) == [1, 1, 1, 1]
    assert step_lengths(text, 2, [perfect[0], [0] * 7, perfect[2]]) == [2, 2]
    assert step_lengths(text[:3], 2, perfect) == []


def test_a_head_is_written_as_other_engines_load_it(tmp_path, tokenizer, dense):
    head = eagle3.make_head(dense, tokenizer, HEAD)
    eagle3.save_head(head, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["model_type"] == "llama" and config["draft_vocab_size"] == 200
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 2, 3]
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 1, 2]
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors["fc.weight"].shape == (32, 96)
    assert tensors["midlayer.self_attn.q_proj.weight"].shape == (32, 64)
    drafted = torch.arange(200) + tensors["d2t"]
    assert torch.equal(drafted, tensors["t2d"].nonzero().flatten())
    train.round_weights(head)
    assert equal_states(eagle3.load_head(tmp_path, dense), head)


def test_a_hybrid_folder_holds_the_model_and_its_layer(tmp_path, tokenizer, hybrid):
    layer = mtp.MtpLayer(hybrid)
    mtp.save_hybrid(hybrid, layer, tmp_path)
    train.save_tokenizer(tokenizer, tmp_path)
    assert (tmp_path / "tokenizer.json").read_text() == (HERE / "tokenizer.json").read_text()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    rounded = {name: t.bfloat16().float() for name, t in hybrid.state_dict().items()}
    assert all(torch.equal(t, rounded[name]) for name, t in loaded.state_dict().items())
    assert loaded.config.mtp_num_hidden_layers == 1
    train.round_weights(layer)
    assert equal_states(mtp.load_mtp(tmp_path, loaded), layer)


def test_batches_hold_what_was_said(tokenizer):
    ids, labels = next(islice(train.stream_of(tokenizer, replace(RECIPE, rows=2)), 1, None))
    assert ids.shape == labels.shape == (2, data.SEQUENCE)
    said = tokenizer.decode(labels[0][labels[0] != data.IGNORED].tolist())
    assert "user" not in said and len(said) > 100
