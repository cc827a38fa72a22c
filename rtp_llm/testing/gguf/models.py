# SPDX-License-Identifier: Apache-2.0
"""Writes models of transformers as GGUF files, as llama.cpp's converter does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rtp_llm.testing.gguf.gemma4 import (
    GEMMA4_NAMES,
    GEMMA4_SCALES,
    gemma4_metadata,
)
from rtp_llm.testing.gguf.rope_divisors import rope_divisors
from rtp_llm.testing.gguf.sized_blocks import sized_blocks, weights_of
from rtp_llm.testing.gguf.writer import Tensor as Entry
from rtp_llm.testing.gguf.writer import packed

# Ends of names in transformers, and the names in files.
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "eh_proj": "nextn.eh_proj",
    "enorm": "nextn.enorm",
    "hnorm": "nextn.hnorm",
    "shared_head.norm": "nextn.shared_head_norm",
}
_GEMMA = {
    **_NAMES,
    "dense_2": "dense_2",
    "dense_3": "dense_3",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_QWEN35 = {**_NAMES, "post_attention_layernorm": "post_attention_norm"}
_GPT_OSS = {
    **_QWEN35,
    "mlp.router": "ffn_gate_inp",
    "self_attn.sinks": "attn_sinks",
}
_DEEPSEEK = {
    **_NAMES,
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}
_DELTA_NET = {
    "in_proj_qkv": "attn_qkv.weight",
    "in_proj_z": "attn_gate.weight",
    "in_proj_a": "ssm_alpha.weight",
    "in_proj_ba": "ssm_ba.weight",
    "in_proj_b": "ssm_beta.weight",
    "A_log": "ssm_a",
    "dt_bias": "ssm_dt.bias",
    "conv1d": "ssm_conv1d.weight",
    "norm": "ssm_norm.weight",
    "out_proj": "ssm_out.weight",
}
_NORMS_PLUS_ONE = ("gemma2", "gemma3", "gemma-embedding", "qwen35", "qwen3next")
_HYBRIDS = ("qwen35", "qwen3next")
# Tensors that are never in blocks.
_FLOATS = ("ffn_gate_inp", "ssm_conv1d")
_LAYER = re.compile(r"model\.layers\.(\d+)\.")
# Keys of a config and those of a file, without the architecture.
_KEYS = {
    "num_hidden_layers": "block_count",
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "num_experts": "expert_count",
    "num_local_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "sliding_window": "attention.sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "linear_conv_kernel_dim": "ssm.conv_kernel",
    "linear_key_head_dim": "ssm.state_size",
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
}


@torch.no_grad()
def save_gguf(
    file: Path,
    model: Any,
    architecture: str,
    kinds: Mapping[str, str] | str = "F32",
    parts: int = 1,
    more: Mapping[str, Any] | None = None,
    heads: Mapping[str, Tensor] | None = None,
) -> list[Path]:
    """Write `model` (float32) and return the file, or its parts.

    `kinds`: the type of matrices, or types by name in the file ("" for all others). Matrices of
    other types than F32 are drawn anew and written into `model`. `more`: metadata besides the
    config's. `heads`: tensors besides the model's, float32.
    """
    tensors: dict[str, Entry] = {}
    copies = _copies(model, architecture)
    for name, copied in copies.items():
        found = copied.values
        kind = kinds if isinstance(kinds, str) else kinds.get(name, kinds.get("", "F32"))
        if found.dim() < 2 or name.endswith(".bias") or any(each in name for each in _FLOATS):
            kind = "F32"
        if kind == "F32":
            stored = found.squeeze() if "_shexp" in name else found
            data = stored.contiguous().view(torch.uint8)
            tensors[name] = Entry("F32", tuple(stored.shape), data.numpy().tobytes())
            continue
        rows = sized_blocks(kind, tuple(found.shape), float(found.std()), seed=len(tensors))
        found.copy_(weights_of(kind, rows))
        tensors[name] = Entry(kind, tuple(found.shape), rows.numpy().tobytes())
    for name, head in (heads or {}).items():
        tensors[name] = Entry("F32", tuple(head.shape), head.contiguous().numpy().tobytes())
    for copied in copies.values():
        copied.write_back()
    divisors = rope_divisors(model.config)
    if divisors is not None:
        tensors["rope_freqs.weight"] = Entry("F32", divisors.shape, divisors.numpy().tobytes())
    metadata = {**_metadata(model.config, architecture), **(more or {})}
    return _write(file, metadata, tensors, parts)


def _write(
    file: Path, metadata: dict[str, Any], tensors: dict[str, Entry], parts: int
) -> list[Path]:
    if parts == 1:
        file.write_bytes(packed(metadata, tensors))
        return [file]
    files, names = [], list(tensors)
    for number in range(parts):
        own = {name: tensors[name] for name in names[number::parts]}
        split = {"split.no": number, "split.count": parts, "split.tensors.count": len(tensors)}
        place = file.with_name(f"{file.stem}-{number + 1:05}-of-{parts:05}.gguf")
        place.write_bytes(packed({**(metadata if number == 0 else {}), **split}, own))
        files.append(place)
    return files


def _names(architecture: str) -> Mapping[str, str]:
    if architecture == "gemma4":
        return {**_GEMMA, **GEMMA4_NAMES}
    if architecture.startswith("gemma"):
        return _GEMMA
    if architecture.startswith(_HYBRIDS):
        return _QWEN35
    if architecture == "deepseek2":
        return _DEEPSEEK
    return _GPT_OSS if architecture == "gpt-oss" else _NAMES


@dataclass
class _Copy:
    """Values as a file has them; `order`: entry i of `axis` is that of `order[i]` in `parameter`.

    `parameter` is None if changed values cannot be written back.
    """

    values: Tensor
    parameter: Tensor | None
    order: Tensor | None = None
    axis: int = 0

    def write_back(self) -> None:
        if self.parameter is None:
            return
        shape = list(self.parameter.shape)
        if self.order is None:
            self.parameter.copy_(self.values.view(shape))
            return
        shape[self.axis] = len(self.order)
        self.parameter.index_copy_(self.axis, self.order, self.values.view(shape))


def _copies(model: Any, architecture: str) -> dict[str, _Copy]:
    """The weights under their names in a file, in its order."""
    found: dict[str, _Copy] = {}
    for name, parameter in (*model.named_parameters(), *_biases(model)):
        prefix = f"blk.{match[1]}." if (match := _LAYER.match(name)) else ""
        stem, data = _LAYER.sub("", name), parameter.data
        for own, copied in _stored(stem, data, model.config, architecture):
            found[prefix + own] = copied
    return found


def _biases(model: Any) -> Iterator[tuple[str, Any]]:
    """Those that balance experts, and scalars of layers, which are buffers."""
    for name, buffer in model.named_buffers():
        if name.endswith(("e_score_correction_bias", "layer_scalar")):
            yield name, buffer


def _stored(stem: str, data: Tensor, config: Any, architecture: str) -> Iterator[tuple[str, _Copy]]:
    """The tensors of a file that hold a parameter."""
    if stem in GEMMA4_SCALES:
        yield GEMMA4_SCALES[stem], _Copy(data.clone(), data)
        return
    if ".experts." in f".{stem}":
        yield from _experts(stem, data, architecture)
        return
    if "kv_b_proj" in stem:
        sizes = [config.qk_nope_head_dim, config.v_head_dim]
        whole = data.view(config.num_attention_heads, -1, config.kv_lora_rank)
        keys, values = torch.split_with_sizes(whole, sizes, 1)
        for name, view in ("attn_k_b", keys.transpose(1, 2)), ("attn_v_b", values):
            yield f"{name}.weight", _Copy(view.clone(), view)
        return
    if "linear_attn" in stem:
        yield from _of_delta_net(stem, data, config, architecture)
        return
    if stem.endswith("e_score_correction_bias"):
        yield "exp_probs_b.bias", _Copy(data.clone(), None)
        return
    module, _, suffix = stem.rpartition(".")
    if suffix not in ("weight", "bias"):
        module, suffix = stem, "weight"
    name = f"{_names(architecture)[module]}.{suffix}"
    if module.endswith("norm") and architecture.startswith(_NORMS_PLUS_ONE):
        yield name, _Copy(data + 1, None)
    elif architecture == "llama" and module in ("self_attn.q_proj", "self_attn.k_proj"):
        heads = torch.arange(len(data)).view(-1, 2, config.head_dim // 2)
        order = heads.transpose(1, 2).flatten()
        yield name, _Copy(data[order], data, order)
    else:
        yield name, _Copy(data.clone(), data)


def _experts(stem: str, data: Tensor, architecture: str) -> Iterator[tuple[str, _Copy]]:
    """Stacked experts; those of gpt-oss are transposed, gate and up in turn."""
    suffix = "bias" if stem.endswith("_bias") else "weight"
    is_oss = architecture == "gpt-oss"
    if "gate_up_proj" not in stem:
        parts = {"down": data}
    elif is_oss:
        parts = {"gate": data[..., ::2], "up": data[..., 1::2]}
    else:
        parts = dict(zip(("gate", "up"), data.chunk(2, 1), strict=True))
    for part, own in parts.items():
        view = own.transpose(1, 2) if is_oss and suffix == "weight" else own
        yield f"ffn_{part}_exps.{suffix}", _Copy(view.clone(), view)


def _of_delta_net(
    stem: str, data: Tensor, config: Any, architecture: str
) -> Iterator[tuple[str, _Copy]]:
    """Value heads in the order [heads of a key head, key heads], but for qwen3next."""
    part = stem.removeprefix("linear_attn.").removesuffix(".weight")
    groups, count = config.linear_num_key_heads, config.linear_num_value_heads
    if part == "in_proj_qkvz":
        values = count // groups * config.linear_value_head_dim
        key = config.linear_key_head_dim
        whole = torch.arange(len(data)).view(groups, -1)
        rows = torch.split_with_sizes(whole, (key, key, values, values), 1)
        order = torch.cat([each.flatten() for each in rows[:3]])
        yield "attn_qkv.weight", _Copy(data[order], data, order)
        yield "attn_gate.weight", _Copy(data[rows[3].flatten()], data, rows[3].flatten())
        return
    if architecture == "qwen3next":
        groups = count
    name = _DELTA_NET[part]
    if part in ("norm", "in_proj_ba"):
        yield name, _Copy(data.clone(), data)
        return
    size = (
        1
        if part in ("in_proj_a", "in_proj_b", "dt_bias", "A_log")
        else config.linear_value_head_dim
    )
    axis = 1 if part == "out_proj" else 0
    first = data.shape[axis] - count * size
    heads = first + torch.arange(count * size).view(groups, count // groups, size)
    order = torch.cat([torch.arange(first), heads.transpose(0, 1).flatten()])
    values = data.index_select(axis, order)
    if part == "A_log":
        yield name, _Copy(-values.exp(), None)
        return
    yield name, _Copy(values.squeeze(1) if part == "conv1d" else values, data, order, axis)


def _metadata(config: Any, architecture: str) -> dict[str, Any]:
    values: dict[str, Any] = {"general.architecture": architecture, "general.name": "Tiny"}
    for key, name in _KEYS.items():
        found = getattr(config, key, None)
        if isinstance(found, int | float) and not isinstance(found, bool):
            values[f"{architecture}.{name}"] = found
    width = values.get(f"{architecture}.attention.key_length")
    if width is not None:
        values[f"{architecture}.attention.value_length"] = width
    if architecture.startswith(_HYBRIDS):
        inner = config.linear_num_value_heads * config.linear_value_head_dim
        values[f"{architecture}.ssm.inner_size"] = inner
        interval = config.layer_types.index("full_attention") + 1
        values[f"{architecture}.full_attention_interval"] = interval
    if architecture == "deepseek2":
        values |= {f"deepseek2.{key}": value for key, value in _latents(config).items()}
    if architecture == "gemma3":
        pattern = [kind == "sliding_attention" for kind in config.layer_types]
        values["gemma3.attention.sliding_window_pattern"] = pattern
    values |= {"tokenizer.ggml.eos_token_id": 2, **_rope(config, architecture)}
    if architecture == "gemma4":
        values |= {f"gemma4.{key}": value for key, value in gemma4_metadata(config).items()}
    return values


def _latents(config: Any) -> dict[str, Any]:
    """What is else to say of DeepSeek's models."""
    rope, rank = config.qk_rope_head_dim, config.kv_lora_rank
    is_v3 = "V3" in type(config).__name__
    return {
        "attention.head_count_kv": 1,
        "attention.key_length": rank + rope,
        "attention.value_length": rank,
        "attention.key_length_mla": config.qk_nope_head_dim + rope,
        "attention.value_length_mla": config.v_head_dim,
        "attention.kv_lora_rank": rank,
        **({"attention.q_lora_rank": config.q_lora_rank} if config.q_lora_rank else {}),
        "rope.dimension_count": rope,
        "leading_dense_block_count": config.first_k_dense_replace,
        "expert_count": config.n_routed_experts,
        "expert_shared_count": config.n_shared_experts,
        "expert_weights_scale": config.routed_scaling_factor,
        "expert_weights_norm": is_v3,
        "expert_gating_func": 2 if is_v3 else 1,
        "expert_group_count": config.n_group or 1,
        "expert_group_used_count": config.topk_group or 1,
    }


def _rope(config: Any, architecture: str) -> dict[str, Any]:
    settings = config.rope_parameters
    full = settings.get("full_attention", settings)
    values = {f"{architecture}.rope.freq_base": float(full["rope_theta"])}
    if "sliding_attention" in settings:
        near = settings["sliding_attention"]["rope_theta"]
        values[f"{architecture}.rope.freq_base_swa"] = float(near)
    if "partial_rotary_factor" in full:
        size = int(config.head_dim * full["partial_rotary_factor"])
        values[f"{architecture}.rope.dimension_count"] = size
    kind = full.get("rope_type", "default")
    if kind in ("linear", "yarn"):
        values |= {
            f"{architecture}.rope.scaling.type": kind,
            f"{architecture}.rope.scaling.factor": float(full["factor"]),
        }
    if kind == "yarn":
        length = full["original_max_position_embeddings"]
        values[f"{architecture}.rope.scaling.original_context_length"] = length
    return values
