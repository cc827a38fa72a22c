# SPDX-License-Identifier: Apache-2.0
"""Model folders of transformers, stored again in Mistral's own layout."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

_NAMES = (
    ("model.layers.", "layers."),
    ("model.embed_tokens", "tok_embeddings"),
    ("model.norm", "norm"),
    ("lm_head", "output"),
    ("self_attn.q_proj", "attention.wq"),
    ("self_attn.k_proj", "attention.wk"),
    ("self_attn.v_proj", "attention.wv"),
    ("self_attn.o_proj", "attention.wo"),
    ("mlp.gate_proj", "feed_forward.w1"),
    ("mlp.down_proj", "feed_forward.w2"),
    ("mlp.up_proj", "feed_forward.w3"),
    ("block_sparse_moe.", "feed_forward."),
    ("post_attention_layernorm", "ffn_norm"),
    ("input_layernorm", "attention_norm"),
)
_PARAMS = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "intermediate_size": "hidden_dim",
    "rms_norm_eps": "norm_eps",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_position_embeddings",
}


def store_as_mistral(folder: Path, *, fp8: bool = False, **more: Any) -> Path:
    """The model of `folder` in Mistral's layout, in another folder; `more` goes to params.json.

    `fp8`: weights become FP8 of one scale each, in both folders.
    """
    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    theirs = dict(weights)
    if fp8:
        weights, theirs = _fp8(weights)
        config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "static"}
        (folder / "config.json").write_text(json.dumps(config))
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        more["quantization"] = {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}
    made = folder.with_name(f"{folder.name}-mistral")
    made.mkdir()
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    stored = {_name(name): _turned(name, each, size) for name, each in theirs.items()}
    stored["vision_encoder.ln_pre.weight"] = torch.ones(3)
    save_file(stored, made / "consolidated.safetensors")
    params = {theirs: config[ours] for ours, theirs in _PARAMS.items() if config.get(ours)}
    if "num_local_experts" in config:
        experts = config["num_local_experts"], config["num_experts_per_tok"]
        params["moe"] = dict(zip(("num_experts", "num_experts_per_tok"), experts, strict=True))
    rope = config.get("rope_parameters") or config
    params["rope_theta"] = rope["rope_theta"]
    (made / "params.json").write_text(json.dumps({**params, **more}))
    if (folder / "tokenizer.json").exists():
        shutil.copy(folder / "tokenizer.json", made)
    return made


def _fp8(weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights of projections in FP8 with the names of transformers' scales, and of Mistral's."""
    ours, theirs = {}, {}
    for name, weight in weights.items():
        ours[name] = theirs[name] = weight
        if not name.endswith("_proj.weight"):
            continue
        scale = (weight.abs().max() / 448).float()
        ours[name] = theirs[name] = (weight / scale).to(torch.float8_e4m3fn)
        module = name.removesuffix("weight")
        ours[f"{module}weight_scale"] = theirs[f"{module}qscale_weight"] = scale
        ours[f"{module}input_scale"] = theirs[f"{module}qscale_act"] = torch.ones(())
    return ours, theirs


def _name(name: str) -> str:
    for ours, theirs in _NAMES:
        name = name.replace(ours, theirs)
    return name


def _turned(name: str, weight: Tensor, size: int) -> Tensor:
    """Rows of queries and keys in pairs instead of halves."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return weight
    heads = weight.view(torch.uint8) if weight.dtype.itemsize == 1 else weight
    heads = heads.view(-1, 2, size // 2, weight.shape[1]).transpose(1, 2)
    return heads.reshape(weight.shape).contiguous().view(weight.dtype)
