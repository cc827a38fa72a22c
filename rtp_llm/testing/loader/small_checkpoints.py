# SPDX-License-Identifier: Apache-2.0
"""A small Qwen3 model folder, written tensor by tensor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 37,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 10,
    "max_position_embeddings": 64,
    "torch_dtype": "float32",
}


def tensors(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """The tensors of CONFIG under transformers' names."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (37, 24),
        "model.norm.weight": (24,),
    }
    shapes["lm_head.weight"] = (37, 24)
    for layer in range(2):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.input_layernorm.weight": (24,),
            f"{at}.post_attention_layernorm.weight": (24,),
            f"{at}.self_attn.q_proj.weight": (30, 24),
            f"{at}.self_attn.k_proj.weight": (10, 24),
            f"{at}.self_attn.v_proj.weight": (10, 24),
            f"{at}.self_attn.o_proj.weight": (24, 30),
            f"{at}.self_attn.q_norm.weight": (10,),
            f"{at}.self_attn.k_norm.weight": (10,),
            f"{at}.mlp.gate_proj.weight": (20, 24),
            f"{at}.mlp.up_proj.weight": (20, 24),
            f"{at}.mlp.down_proj.weight": (24, 20),
        }
    generator = torch.Generator().manual_seed(3)
    return {
        name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()
    }


def write(folder: Path, weights: dict[str, torch.Tensor], shards: int = 1, **changes: Any) -> Path:
    """A model folder with `weights` spread over `shards` files."""
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    if shards == 1:
        save_file(weights, folder / "model.safetensors")
        return folder
    where: dict[str, str] = {}
    for number in range(shards):
        name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(weights.items())[number::shards])
        save_file(part, folder / name)
        where |= dict.fromkeys(part, name)
    index = {"metadata": {}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
