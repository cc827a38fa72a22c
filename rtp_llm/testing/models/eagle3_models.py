# SPDX-License-Identifier: Apache-2.0
"""Random EAGLE-3 heads for small models, in folders and in plain PyTorch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from rtp_llm.testing.light_transformers import light_transformers
from rtp_llm.testing.models.transformers_models import randomize

with light_transformers():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import (
        LlamaMLP,
        LlamaRMSNorm,
        LlamaRotaryEmbedding,
        apply_rotary_pos_emb,
    )

_CAPTURES = [2, 0, 1]  # any order


class _Attention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.size, wide = config.head_dim, 2 * config.hidden_size
        self.q_proj = nn.Linear(wide, self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(wide, self.kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(wide, self.kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = (
            projection(x).view(1, len(x), heads, self.size).transpose(1, 2)
            for projection, heads in (
                (self.q_proj, self.heads),
                (self.k_proj, self.kv_heads),
                (self.v_proj, self.kv_heads),
            )
        )
        q, k = apply_rotary_pos_emb(q, k, *angles)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        projected: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(len(x), -1))
        return projected


class _Layer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = LlamaRMSNorm(hidden, eps)
        self.hidden_norm = LlamaRMSNorm(hidden, eps)
        self.self_attn = _Attention(config)
        self.post_attention_layernorm = LlamaRMSNorm(hidden, eps)
        self.mlp = LlamaMLP(config)  # type: ignore[no-untyped-call]


class Eagle3Oracle(nn.Module):
    """A head for a transformers ``model``, computed anew for all tokens, in float32."""

    def __init__(self, model: Any, config: Any, *, normed_residual: bool, embedding: bool) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.fc = nn.Linear(3 * model.config.hidden_size, hidden, bias=False)
        self.midlayer = _Layer(config)
        self.norm = LlamaRMSNorm(hidden, config.rms_norm_eps)
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False)
        if embedding:
            self.embed_tokens = nn.Embedding(config.vocab_size, hidden)
        self._rotary = [LlamaRotaryEmbedding(config)]
        self._target, self._normed_residual = [model], normed_residual
        # Some tokens of the model's vocabulary, in order.
        chosen = torch.randperm(config.vocab_size)[: config.draft_vocab_size].sort().values
        self.offsets = chosen - torch.arange(config.draft_vocab_size)

    @torch.inference_mode()
    def captured(self, tokens: Sequence[int]) -> Tensor:
        """What goes into the layers of the model that it reads, side by side [T, 3 hidden]."""
        (model,) = self._target
        states = model(input_ids=torch.tensor([tokens]), output_hidden_states=True).hidden_states
        return torch.cat([states[layer][0] for layer in _CAPTURES], 1)

    @torch.inference_mode()
    def forward(self, tokens: Sequence[int], states: Tensor) -> Tensor:
        """New states [T, hidden] of ``tokens``, each following the token of its ``states`` row."""
        (model,), layer = self._target, self.midlayer
        embedding = getattr(self, "embed_tokens", model.model.embed_tokens)
        normed = layer.hidden_norm(states)
        x = torch.cat([layer.input_layernorm(embedding(torch.tensor(tokens))), normed], 1)
        residual = normed if self._normed_residual else states
        angles = self._rotary[0](x, torch.arange(len(tokens))[None])
        residual = residual + layer.self_attn(x, angles)
        result: Tensor = residual + layer.mlp(layer.post_attention_layernorm(residual))
        return result

    @torch.inference_mode()
    def logits(self, states: Tensor) -> Tensor:
        """Float32 [T, vocabulary of the head]."""
        logits: Tensor = self.lm_head(self.norm(states))
        return logits

    @torch.inference_mode()
    def drafts(self, tokens: Sequence[int], count: int) -> tuple[list[int], float]:
        """The tokens drafted after ``tokens`` (two at least), whose last one was just sampled.

        Also returns the smallest margin between the best token and the runner-up.
        """
        drafted, gap = [int(token) for token in tokens[1:]], torch.inf
        rows = self.fc(self.captured(tokens[:-1]))
        for _ in range(count):
            last = self(drafted, rows)[-1:]
            best = self.logits(last)[0].topk(2)
            gap = min(gap, float(best.values[0] - best.values[1]))
            choice = int(best.indices[0])
            drafted.append(choice + int(self.offsets[choice]))
            rows = torch.cat([rows, last])
        return drafted[len(tokens) - 1 :], gap


def save_eagle3_head(
    folder: Path, model: Any, *, draft_vocab_size: int, embedding: bool = False, **settings: Any
) -> Eagle3Oracle:
    """Write a random head for ``model`` to ``folder``, ``embedding``: with a table of its own."""
    target = model.config
    values = {
        "hidden_size": target.hidden_size,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "intermediate_size": 80,
        "num_hidden_layers": 1,
        "max_position_embeddings": 256,
        "vocab_size": target.vocab_size,
        "draft_vocab_size": draft_vocab_size,
        "eagle_aux_hidden_state_layer_ids": _CAPTURES,
        "rms_norm_eps": 1e-5,
        **settings,
    }
    config: Any = LlamaConfig(**values)
    normed_residual = bool(settings.get("norm_before_residual"))
    torch.manual_seed(3)
    oracle = Eagle3Oracle(model, config, normed_residual=normed_residual, embedding=embedding)
    with torch.no_grad():
        for name, parameter in oracle.named_parameters():
            randomize(name, parameter)
    folder.mkdir(exist_ok=True)
    tensors = {name: value.clone() for name, value in oracle.state_dict().items()}
    t2d = torch.zeros(target.vocab_size, dtype=torch.bool)
    t2d[oracle.offsets + torch.arange(draft_vocab_size)] = True
    tensors |= {"d2t": oracle.offsets.clone(), "t2d": t2d}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    named = values | {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}
    (folder / "config.json").write_text(json.dumps(named))
    return oracle.eval().requires_grad_(False)
