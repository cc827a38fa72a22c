# SPDX-License-Identifier: Apache-2.0
"""Writes BERT models of transformers as GGUF files, as llama.cpp's converter does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rtp_llm.testing.gguf.sized_blocks import sized_blocks, weights_of
from rtp_llm.testing.gguf.writer import Tensor as Entry
from rtp_llm.testing.gguf.writer import Typed, write

# Modules of transformers, and the names in files.
_NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
    "classifier.dense": "cls",
    "classifier.out_proj": "cls.output",
}
_PREFIX = re.compile(r"^(bert|roberta)\.")
_LAYER = re.compile(r"encoder\.layer\.(\d+)\.")
# Tensors that are never in blocks.
_FLOATS = ("position_embd", "token_types")
WORDS = ("a", "man", "is", "eat", "food", "bread", "zurich", "is", "!", ".")


@torch.no_grad()
def save_bert_gguf(
    file: Path, model: Any, kinds: Mapping[str, str] | str = "F32", **metadata: Any
) -> Path:
    """Write a BertModel, RobertaModel or RobertaForSequenceClassification (float32), and return
    the file.

    `kinds`: the type of matrices, or types by name in the file ("" for all others). Matrices of
    other types than F32 are drawn anew and written into `model`. `metadata`: keys of the
    architecture, with "__" for a point.
    """
    tensors: dict[str, Entry] = {}
    for full, parameter in model.named_parameters():
        if "pooler." in full:
            continue
        full = _PREFIX.sub("", full)
        layer, (module, _, suffix) = _LAYER.match(full), _LAYER.sub("", full).rpartition(".")
        name = f"{f'blk.{layer[1]}.' if layer else ''}{_NAMES[module]}.{suffix}"
        data = parameter.data
        if name == "position_embd.weight" and model.config.model_type != "bert":
            data = data[model.config.pad_token_id + 1 :]
        kind = kinds if isinstance(kinds, str) else kinds.get(name, kinds.get("", "F32"))
        if data.dim() < 2 or name.startswith(_FLOATS):
            kind = "F32"
        if kind == "F32":
            content = data.contiguous().numpy().tobytes()
        else:
            rows = sized_blocks(kind, tuple(data.shape), float(data.std()), seed=len(tensors))
            data.copy_(weights_of(kind, rows))
            content = rows.numpy().tobytes()
        tensors[name] = Entry(kind, tuple(data.shape), content)
    return write(
        file, {**_metadata(model.config), **_of_model(metadata), **_tokens(model)}, tensors
    )


def _metadata(config: Any) -> dict[str, Any]:
    keys = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention__head_count": config.num_attention_heads,
        "attention__layer_norm_epsilon": config.layer_norm_eps,
        "attention__causal": False,
    }
    return {"general.architecture": "bert", "general.name": "Tiny", **_of_model(keys)}


def _of_model(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {f"bert.{key.replace('__', '.')}": value for key, value in keys.items()}


def _tokens(model: Any) -> dict[str, Any]:
    """A WordPiece vocabulary of the model's size: special tokens, whole words, their parts."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [f"▁{word}" for word in dict.fromkeys(WORDS)] + ["ing", "s"]
    unused = range(model.config.vocab_size - len(special) - len(words))
    tokens = [*special, *words, *(f"▁word{number}" for number in unused)]
    values = {
        "model": "bert",
        "tokens": tokens,
        "token_type": Typed("i32", [3] * len(special) + [1] * (len(tokens) - len(special))),
        "token_type_count": 2,
        "padding_token_id": 0,
        "unknown_token_id": 1,
        "bos_token_id": 2,
        "cls_token_id": 2,
        "seperator_token_id": 3,
        "mask_token_id": 4,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}
