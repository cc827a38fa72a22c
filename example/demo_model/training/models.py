# SPDX-License-Identifier: Apache-2.0
"""The two models that learn the corpus: a dense Qwen3 and a Qwen3.5 with experts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import (
    PreTrainedModel,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from example.demo_model.training import calculator, data, sums

CONTEXT = 1024
THETA = 10000.0


@dataclass(frozen=True)
class DenseShape:
    """Sizes of the dense demo."""

    hidden: int = 192
    intermediate: int = 512
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64


@dataclass(frozen=True)
class HybridShape:
    """Sizes of the hybrid demo; each `interval`th layer has full attention.

    Hidden size, full heads, layers and the shared expert match the dense demo: training begins
    with its weights.
    """

    hidden: int = 192
    layers: int = 6
    interval: int = 3
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    linear_key_heads: int = 2
    linear_value_heads: int = 4
    linear_head_dim: int = 32
    experts: int = 4
    experts_per_token: int = 2
    expert: int = 48
    shared_expert: int = 512


def _tokens(tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "vocab_size": data.VOCABULARY,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.token_to_id(data.END),
        "pad_token_id": tokenizer.token_to_id(data.PAD),
    }


def make_dense(tokenizer: Tokenizer, shape: DenseShape) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        rope_theta=THETA,
        **_tokens(tokenizer),
    )
    return Qwen3ForCausalLM(config)


def make_hybrid(tokenizer: Tokenizer, shape: HybridShape) -> Qwen3_5MoeForCausalLM:
    """The model without its MTP layer, which `mtp.py` adds."""
    config = Qwen3_5MoeTextConfig(
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        full_attention_interval=shape.interval,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        linear_num_key_heads=shape.linear_key_heads,
        linear_num_value_heads=shape.linear_value_heads,
        linear_key_head_dim=shape.linear_head_dim,
        linear_value_head_dim=shape.linear_head_dim,
        num_experts=shape.experts,
        num_experts_per_tok=shape.experts_per_token,
        moe_intermediate_size=shape.expert,
        shared_expert_intermediate_size=shape.shared_expert,
        router_aux_loss_coef=0.01,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": THETA,
            "partial_rotary_factor": 1.0,  # as the dense demo rotates
        },
        **_tokens(tokenizer),
    )
    model = Qwen3_5MoeForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith("dt_bias"):
            _forget_slowly(parameter)
    return model


@torch.no_grad()
def _forget_slowly(dt_bias: torch.nn.Parameter) -> None:
    """Steps of 0.001 to 0.1, as in Mamba: with transformers' ones, states forget at once."""
    steps = torch.empty_like(dt_bias).uniform_(math.log(1e-3), math.log(1e-1)).exp()
    dt_bias.copy_(steps + torch.log(-torch.expm1(-steps)))  # the inverse of softplus


@torch.no_grad()
def start_from_dense(model: Qwen3_5MoeForCausalLM, dense: Qwen3ForCausalLM) -> None:
    """Give `model` all that `dense` has in the same place; its delta nets stay as they were made.

    Gates begin at zero, so at one half: what they weigh is doubled. Routed experts begin silent.
    """
    _copy_norm(model.model.norm, dense.model.norm)
    model.model.embed_tokens.weight.copy_(dense.model.embed_tokens.weight)
    for layer, source in zip(model.model.layers, dense.model.layers, strict=True):
        _copy_norm(layer.input_layernorm, source.input_layernorm)
        _copy_norm(layer.post_attention_layernorm, source.post_attention_layernorm)
        if layer.block_type == "full_attention":
            _copy_attention(layer.self_attn, source.self_attn)
        shared = layer.mlp.shared_expert
        shared.gate_proj.weight.copy_(source.mlp.gate_proj.weight)
        shared.up_proj.weight.copy_(source.mlp.up_proj.weight)
        shared.down_proj.weight.copy_(2 * source.mlp.down_proj.weight)
        layer.mlp.shared_expert_gate.weight.zero_()
        layer.mlp.experts.down_proj.zero_()


def _copy_norm(norm: torch.nn.Module, source: torch.nn.Module) -> None:
    norm.weight.copy_(source.weight - 1)  # which is added to one


def _copy_attention(attention: torch.nn.Module, source: torch.nn.Module) -> None:
    queries = attention.q_proj.weight.unflatten(0, (-1, 2, attention.head_dim))
    queries[:, 0].copy_(source.q_proj.weight.unflatten(0, (-1, attention.head_dim)))
    queries[:, 1].zero_()  # the gates
    attention.k_proj.weight.copy_(source.k_proj.weight)
    attention.v_proj.weight.copy_(source.v_proj.weight)
    attention.o_proj.weight.copy_(2 * source.o_proj.weight)
    _copy_norm(attention.q_norm, source.q_norm)
    _copy_norm(attention.k_norm, source.k_norm)


def accuracy(model: PreTrainedModel, tokenizer: Tokenizer) -> float:
    """Share of 200 held-out sums that greedy decoding answers exactly."""
    pairs = sums.held_out_sums(200)
    prompts = [data.prompt_ids(tokenizer, sums.question(a, b)) for a, b in pairs]
    return exact(model, tokenizer, prompts, [sums.answer(a, b) for a, b in pairs])


def tool_accuracy(model: PreTrainedModel, tokenizer: Tokenizer, count: int) -> tuple[float, float]:
    """Shares of held-out tool cases with the exact call, and with the exact answer after it."""
    cases = calculator.held_out_cases(count)
    prompts = [data.case_prompts(tokenizer, system, case) for system, case in cases]
    replies = [(case.turns[0][1], case.turns[1][1]) for _, case in cases]
    calls, answers = (
        exact(model, tokenizer, list(of_step), list(texts))
        for of_step, texts in zip(
            zip(*prompts, strict=True), zip(*replies, strict=True), strict=True
        )
    )
    return calls, answers


@torch.inference_mode()
def exact(
    model: PreTrainedModel, tokenizer: Tokenizer, prompts: list[list[int]], texts: list[str]
) -> float:
    """Share of `prompts` that greedy decoding answers with exactly the text."""
    replies = [tokenizer.encode(f"{text}{data.END}").ids for text in texts]
    rows = [prompt + reply for prompt, reply in zip(prompts, replies, strict=True)]
    ids = data.padded(rows, tokenizer.token_to_id(data.PAD))
    was_training = model.training
    predicted = torch.cat(
        [model.eval()(input_ids=part).logits.argmax(-1) for part in ids.split(50)]
    )
    model.train(was_training)
    right = 0
    for row, prompt, reply in zip(predicted.tolist(), prompts, replies, strict=True):
        right += row[len(prompt) - 1 : len(prompt) + len(reply) - 1] == reply
    return right / len(prompts)
