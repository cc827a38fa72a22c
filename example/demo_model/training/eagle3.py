# SPDX-License-Identifier: Apache-2.0
"""The EAGLE-3 draft head of the dense demo, in the layout that vLLM and SGLang load."""

from __future__ import annotations

import json
import pathlib
from collections import Counter
from dataclasses import dataclass
from itertools import islice

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import LlamaConfig, Qwen3ForCausalLM
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

from example.demo_model.training import calculator, corpus, data
from example.demo_model.training.chain import ChainMemory, rotate

ARCHITECTURE = "LlamaForCausalLMEagle3"


@dataclass(frozen=True)
class HeadShape:
    """Sizes of the head; its attention has the target's heads."""

    intermediate: int = 512
    draft_vocabulary: int = 512


class _Attention(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        hidden, size = config.hidden_size, config.head_dim
        self._size, self._theta = size, config.rope_parameters["rope_theta"]
        self.q_proj = nn.Linear(2 * hidden, config.num_attention_heads * size, bias=False)
        self.k_proj = nn.Linear(2 * hidden, config.num_key_value_heads * size, bias=False)
        self.v_proj = nn.Linear(2 * hidden, config.num_key_value_heads * size, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * size, hidden, bias=False)

    def forward(self, states: Tensor, positions: Tensor, memory: ChainMemory) -> Tensor:
        query, key, value = (
            projection(states).unflatten(-1, (-1, self._size)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = (rotate(part, positions, self._theta) for part in (query, key))
        mixed: Tensor = self.o_proj(memory.attend(query, key, value))
        return mixed


class _MidLayer(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = LlamaRMSNorm(hidden, eps)
        self.hidden_norm = LlamaRMSNorm(hidden, eps)
        self.self_attn = _Attention(config)
        self.post_attention_layernorm = LlamaRMSNorm(hidden, eps)
        self.mlp = LlamaMLP(config)

    def forward(
        self, embedded: Tensor, hidden: Tensor, positions: Tensor, memory: ChainMemory
    ) -> Tensor:
        both = torch.cat([self.input_layernorm(embedded), self.hidden_norm(hidden)], -1)
        hidden = hidden + self.self_attn(both, positions, memory)
        mixed: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return mixed


class Eagle3Head(nn.Module):
    """Its state is what the checkpoint holds; the embedding is the target's and stays there."""

    d2t: Tensor
    t2d: Tensor

    def __init__(self, config: LlamaConfig, embedding: Tensor, draft_ids: Tensor) -> None:
        """``embedding`` [V, H] of the target; sorted ``draft_ids`` [drafts] of its tokens."""
        super().__init__()
        self.config, self._embedding = config, embedding
        hidden = config.hidden_size
        self.fc = nn.Linear(3 * config.target_hidden_size, hidden, bias=False)
        self.midlayer = _MidLayer(config)
        self.norm = LlamaRMSNorm(hidden, config.rms_norm_eps)
        self.lm_head = nn.Linear(hidden, len(draft_ids), bias=False)
        self.register_buffer("d2t", draft_ids - torch.arange(len(draft_ids)))
        drafted = torch.zeros(len(embedding), dtype=torch.bool)
        drafted[draft_ids] = True
        self.register_buffer("t2d", drafted)

    @property
    def draft_ids(self) -> Tensor:
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def combine(self, hidden: Tensor) -> Tensor:
        combined: Tensor = self.fc(hidden)
        return combined

    def step(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, memory: ChainMemory
    ) -> tuple[Tensor, Tensor]:
        embedded = nn.functional.embedding(tokens, self._embedding)
        hidden = self.midlayer(embedded, hidden, positions, memory)
        return self.lm_head(self.norm(hidden)), hidden


def make_head(target: Qwen3ForCausalLM, tokenizer: Tokenizer, shape: HeadShape) -> Eagle3Head:
    """A head of random weights whose logits begin as the target's of the same hidden state."""
    embedding = target.model.embed_tokens.weight.detach()
    draft_ids = frequent_tokens(tokenizer, shape.draft_vocabulary)
    head = Eagle3Head(_config(target.config, shape), embedding, draft_ids)
    with torch.no_grad():
        for module in head.modules():
            if isinstance(module, nn.Linear):
                module.weight.normal_(std=0.02)
        head.lm_head.weight.copy_(embedding[draft_ids])
        head.norm.weight.copy_(target.model.norm.weight)
    return head


def frequent_tokens(tokenizer: Tokenizer, count: int) -> Tensor:
    """The `count` tokens that the assistant says most often, in the order of their ids."""
    streams = corpus.conversations(seed=0), calculator.conversations(seed=0)
    chats = [chat for stream in streams for chat in islice(stream, 2000)]
    replies = [f"{answered}{data.END}" for chat in chats for _, answered in chat.turns]
    said = Counter(token for reply in tokenizer.encode_batch(replies) for token in reply.ids)
    said.update(dict.fromkeys(range(tokenizer.get_vocab_size()), 0))  # to be enough in any case
    return torch.tensor(sorted(token for token, _ in said.most_common(count)))


def aux_layers(layers: int) -> tuple[int, int, int]:
    """Before which layers of the target the residual stream is read, in vLLM's numbering.

    Its default (2, L/2, L-3) names a layer of the demo twice, so config.json says them.
    """
    return 1, layers // 2, layers - 1


@torch.no_grad()
def target_states(target: Qwen3ForCausalLM, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Three hidden states [B, T, 3 H] and the logits [B, T, V] of the target."""
    output = target(input_ids=ids, output_hidden_states=True)
    layers = aux_layers(target.config.num_hidden_layers)
    return torch.cat([output.hidden_states[layer] for layer in layers], -1), output.logits


def _config(target: LlamaConfig, shape: HeadShape) -> LlamaConfig:
    layers = aux_layers(target.num_hidden_layers)
    return LlamaConfig(
        architectures=[ARCHITECTURE],
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        intermediate_size=shape.intermediate,
        num_hidden_layers=1,
        num_attention_heads=target.num_attention_heads,
        num_key_value_heads=target.num_key_value_heads,
        head_dim=target.head_dim,
        vocab_size=target.vocab_size,
        draft_vocab_size=shape.draft_vocabulary,
        max_position_embeddings=target.max_position_embeddings,
        rms_norm_eps=target.rms_norm_eps,
        rope_parameters=target.rope_parameters,
        tie_word_embeddings=False,
        bos_token_id=target.bos_token_id,
        eos_token_id=target.eos_token_id,
        pad_token_id=target.pad_token_id,
        dtype="bfloat16",
        eagle_aux_hidden_state_layer_ids=list(layers),
        eagle_config={  # as SGLang reads it, which counts the layers' outputs
            "use_aux_hidden_state": True,
            "eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in layers],
        },
    )


def save_head(head: Eagle3Head, output: pathlib.Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    head.config.save_pretrained(output)
    tensors = {
        name: tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
        for name, tensor in head.state_dict().items()
    }
    weights = output / "model.safetensors"
    save_file(tensors, weights, {"format": "pt"})
    weights.chmod(0o644)


def load_head(folder: pathlib.Path, target: Qwen3ForCausalLM) -> Eagle3Head:
    """The head in `folder`, in float32."""
    config = LlamaConfig(**json.loads((folder / "config.json").read_text()))
    tensors = load_file(folder / "model.safetensors")
    draft_ids = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    head = Eagle3Head(config, target.model.embed_tokens.weight.detach(), draft_ids)
    head.load_state_dict(tensors)
    return head.eval()
