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

from example.demo_model.training import data, sums

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
    """Sizes of the hybrid demo; each `interval`th layer has full attention."""

    hidden: int = 192
    layers: int = 6
    interval: int = 3
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    linear_key_heads: int = 2
    linear_value_heads: int = 4
    linear_head_dim: int = 32
    experts: int = 8
    experts_per_token: int = 2
    expert: int = 64
    shared_expert: int = 128


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
            "partial_rotary_factor": 0.25,
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


@torch.inference_mode()
def accuracy(model: PreTrainedModel, tokenizer: Tokenizer) -> float:
    """Share of 200 held-out sums that greedy decoding answers exactly."""
    pairs = sums.held_out_sums(200)
    prompts = [data.prompt_ids(tokenizer, sums.question(a, b)) for a, b in pairs]
    replies = [tokenizer.encode(f"{sums.answer(a, b)}{data.END}").ids for a, b in pairs]
    rows = [prompt + reply for prompt, reply in zip(prompts, replies, strict=True)]
    ids = data.padded(rows, tokenizer.token_to_id(data.PAD))
    was_training = model.training
    predicted = model.eval()(input_ids=ids).logits.argmax(-1)
    model.train(was_training)
    right = 0
    for row, prompt, reply in zip(predicted.tolist(), prompts, replies, strict=True):
        right += row[len(prompt) - 1 : len(prompt) + len(reply) - 1] == reply
    return right / len(pairs)
