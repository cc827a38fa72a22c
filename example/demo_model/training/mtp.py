# SPDX-License-Identifier: Apache-2.0
"""The MTP layer of the hybrid demo: transformers has its parts, not the layer itself."""

from __future__ import annotations

import pathlib

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Qwen3_5MoeForCausalLM
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import (
    Qwen3_5MoeAttention,
    Qwen3_5MoeDecoderLayer,
    Qwen3_5MoeRMSNorm,
)

from example.demo_model.training.chain import ChainMemory, rotate

PREFIX = "mtp."
_HEAD = "lm_head.weight"  # tied to the embedding, so not stored


class MtpLayer(nn.Module):
    """Its state is what the checkpoint holds below `mtp.`; embedding and head are the target's."""

    def __init__(self, target: Qwen3_5MoeForCausalLM) -> None:
        super().__init__()
        config = target.config
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self._config = config
        self._embedding = target.model.embed_tokens.weight.detach()
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        self.pre_fc_norm_embedding = Qwen3_5MoeRMSNorm(hidden, eps)
        self.pre_fc_norm_hidden = Qwen3_5MoeRMSNorm(hidden, eps)
        full = config.layer_types.index("full_attention")
        self.layers = nn.ModuleList([Qwen3_5MoeDecoderLayer(config, full)])
        self.norm = Qwen3_5MoeRMSNorm(hidden, eps)
        self.apply(target._init_weights)

    @property
    def draft_ids(self) -> Tensor:
        return torch.arange(len(self._embedding), device=self._embedding.device)

    def combine(self, hidden: Tensor) -> Tensor:
        return hidden

    def step(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, memory: ChainMemory
    ) -> tuple[Tensor, Tensor]:
        embedded = nn.functional.embedding(tokens, self._embedding)
        both = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)]
        hidden = self.fc(torch.cat(both, -1))
        (layer,) = self.layers
        mixed = self._attend(layer.self_attn, layer.input_layernorm(hidden), positions, memory)
        hidden = hidden + mixed
        hidden = self.norm(hidden + layer.mlp(layer.post_attention_layernorm(hidden)))
        return hidden @ self._embedding.T, hidden

    def _attend(
        self, part: Qwen3_5MoeAttention, states: Tensor, positions: Tensor, memory: ChainMemory
    ) -> Tensor:
        """Full attention with a gated output, from transformers' projections and norms."""
        size, rope = part.head_dim, self._config.rope_parameters
        query, gate = part.q_proj(states).unflatten(-1, (-1, 2 * size)).chunk(2, -1)
        key, value = (
            projection(states).unflatten(-1, (-1, size))
            for projection in (part.k_proj, part.v_proj)
        )
        theta, share = rope["rope_theta"], rope["partial_rotary_factor"]
        query, key = (
            rotate(heads.transpose(1, 2), positions, theta, share)
            for heads in (part.q_norm(query), part.k_norm(key))
        )
        mixed = memory.attend(query, key, value.transpose(1, 2)) * gate.flatten(2).sigmoid()
        projected: Tensor = part.o_proj(mixed)
        return projected


@torch.no_grad()
def target_states(target: Qwen3_5MoeForCausalLM, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Hidden states after the last norm [B, T, H] and the logits [B, T, V] of the target."""
    hidden = target.model(input_ids=ids).last_hidden_state
    return hidden, target.lm_head(hidden)


def save_hybrid(target: Qwen3_5MoeForCausalLM, layer: MtpLayer, output: pathlib.Path) -> None:
    """config.json and model.safetensors, including the layer next to the model's own."""
    output.mkdir(parents=True, exist_ok=True)
    config = target.config
    config.architectures, config.dtype = [type(target).__name__], "bfloat16"
    config.mtp_num_hidden_layers, config.mtp_use_dedicated_embeddings = len(layer.layers), False
    config.attn_output_gate, config.mamba_ssm_dtype = True, "float32"
    config.save_pretrained(output)
    tensors = {name: tensor for name, tensor in target.state_dict().items() if name != _HEAD}
    tensors |= {PREFIX + name: tensor for name, tensor in layer.state_dict().items()}
    stored = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    save_file(stored, output / "model.safetensors", {"format": "pt"})


def load_mtp(folder: pathlib.Path, target: Qwen3_5MoeForCausalLM) -> MtpLayer:
    """The layer in the folder of `target`, in float32."""
    tensors = load_file(folder / "model.safetensors")
    layer = MtpLayer(target)
    layer.load_state_dict(
        {name.removeprefix(PREFIX): t for name, t in tensors.items() if name.startswith(PREFIX)}
    )
    return layer.eval()
