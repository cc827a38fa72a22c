# SPDX-License-Identifier: Apache-2.0
"""The tensors of a folder in Mistral's own layout under the names of transformers.

Rows of queries and keys lie in pairs of channels that turn together, and in halves in transformers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rtp_llm.loader.row_changes import HalvesInTurn
from rtp_llm.loader.safetensors_header import CheckpointError
from rtp_llm.loader.tensor_entry import TensorEntry
from rtp_llm.model_folder import name_of
from rtp_llm.models.mistral_params import head_dim

_TOP = {
    "tok_embeddings": "model.embed_tokens",
    "norm": "model.norm",
    "output": "lm_head",
}
_MODULES = {
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "attention": "self_attn",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "feed_forward.gate": "block_sparse_moe.gate",
}
_SUFFIXES = {"qscale_weight": "weight_scale", "qscale_act": "input_scale"}
_CACHED = {f"{name}_fake_quantizer.qscale_act": f"{name}_scale" for name in ("q", "k", "v", "kv")}
_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
_EXPERT = re.compile(r"feed_forward\.experts\.(\d+)\.(w[123])")
_NOT_TEXT = re.compile(r"(vision_\w+|patch_merger|pre_mm_projector_norm|mm_\w+|audio_\w+)\.")
_TURNED = ("self_attn.q_proj", "self_attn.k_proj")
_WEIGHTS = ("weight", "weight_packed")
_NOT_ROWS = ("weight_g_idx", "weight_shape")  # of columns, and of the whole weight
_BLOCK_SCALES = ("weight_scale", "weight_scale_inv")
_BLOCK = 128  # rows that share a scale


def mistral_tensors(folder: Path, tensors: dict[str, TensorEntry]) -> dict[str, TensorEntry]:
    """Text tensors by name; names that are not known stay. Raises CheckpointError."""
    size = head_dim(folder)
    found: dict[str, TensorEntry] = {}
    for name, entry in tensors.items():
        if _NOT_TEXT.match(name):
            continue
        module, suffix = _hf_name(name)
        made = replace(entry, name=f"{module}.{suffix}" if suffix else module)
        if module.endswith(_TURNED) and suffix not in _NOT_ROWS:
            made = _turned(made, suffix, _rows(tensors, name), size)
        if made.name in found:
            raise CheckpointError(
                f"{entry.file}: {name_of(name)} is {name_of(made.name)} once more"
            )
        found[made.name] = made
    return found


def _rows(tensors: Mapping[str, TensorEntry], name: str) -> int | None:
    """How many rows the weight has to which a tensor belongs; None if there is no weight."""
    module = name.rpartition(".")[0]
    weights = (tensors.get(f"{module}.{weight}") for weight in _WEIGHTS)
    return next((each.shape[0] for each in weights if each is not None and each.shape), None)


def _turned(entry: TensorEntry, suffix: str, rows: int | None, size: int) -> TensorEntry:
    """The tensor with its rows in the order of transformers, if it has one for each of `rows`.

    What belongs to several rows has to belong to whole heads, whose order stays.
    """
    if not entry.shape or entry.shape[0] == 1:
        return entry
    if rows in (None, entry.shape[0]) and entry.shape[0] % size == 0:
        return replace(entry, change=HalvesInTurn(size))
    packed = suffix == "weight_zero_point"
    if packed or (suffix in _BLOCK_SCALES and _BLOCK % size):
        raise CheckpointError(
            f"{entry.file}: {entry.name} {list(entry.shape)} has numbers for rows of several heads "
            f"of {size}, whose order transformers changes"
        )
    return entry


def _hf_name(name: str) -> tuple[str, str]:
    """The module and the suffix of a tensor in transformers."""
    path, _, suffix = name.rpartition(".")
    suffix = _SUFFIXES.get(suffix, suffix)
    if path in _TOP:
        return _TOP[path], suffix
    match = _LAYER.fullmatch(name)
    if match is None:
        return name, ""
    prefix, inner = f"model.layers.{match[1]}.", match[2]
    attention, _, cached = inner.partition(".")
    if attention == "attention" and cached in _CACHED:
        return f"{prefix}self_attn", _CACHED[cached]
    module = inner.rpartition(".")[0]
    if expert := _EXPERT.fullmatch(module):
        return f"{prefix}block_sparse_moe.experts.{expert[1]}.{expert[2]}", suffix
    return (prefix + _MODULES[module], suffix) if module in _MODULES else (name, "")
