# SPDX-License-Identifier: Apache-2.0
"""Shapes of BERT's family, and folders that embed with random weights."""

from __future__ import annotations

import json
import pathlib
from typing import Any

from benchmark.random_model import cache_folder, config_folder, layer_operations
from benchmark.random_tokenizer import save_random_tokenizer

TOKENS = 1000  # of the tokenizers, and of the vocabulary that texts are made of
ENCODER_SHAPES = {  # hidden, layers, heads, inner, vocabulary
    "tiny": (64, 2, 2, 128, TOKENS),
    "minilm": (384, 6, 12, 1536, TOKENS),
    "bert-base": (768, 12, 12, 3072, TOKENS),
    "bge-large": (1024, 24, 16, 4096, 30522),
}
# Decoders that embed by the last token, and their sizes in benchmark/random_model.py.
DECODER_SHAPES = {"qwen3-embedding-0.6b": "qwen3-0.6b"}


def encoder_config(shape: str) -> dict[str, Any]:
    """Return config.json of a shape of ENCODER_SHAPES."""
    hidden, layers, heads, inner, vocabulary = ENCODER_SHAPES[shape]
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "pad_token_id": 0,
    }


def embedder_folder(shape: str) -> pathlib.Path:
    """A folder without weights, for dummy ones: the state of the first token of an encoder, of the
    last one of a decoder, normalised."""
    folder = cache_folder() / f"{shape}-embedder"
    folder.mkdir(parents=True, exist_ok=True)
    if shape in DECODER_SHAPES:
        file = config_folder(DECODER_SHAPES[shape]) / "config.json"
        config, pooling = json.loads(file.read_text()), "lasttoken"
    else:
        config, pooling = {**encoder_config(shape), "dtype": "bfloat16"}, "cls_token"
    (folder / "config.json").write_text(json.dumps(config))
    save_tokenizer(folder, TOKENS)
    save_pooling(folder, pooling, normalize=True)
    return folder


def save_tokenizer(folder: pathlib.Path, vocabulary: int) -> None:
    """Write a random tokenizer, once, and the class that transformers needs to read it."""
    if not (folder / "tokenizer.json").exists():
        save_random_tokenizer(folder / "tokenizer.json", vocabulary)
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<end>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))


def save_pooling(folder: pathlib.Path, mode: str, *, normalize: bool) -> None:
    """Write the files of sentence-transformers: `mode` is cls_token, mean_tokens or lasttoken."""
    types = {"": "Transformer", "1_Pooling": "Pooling"} | (
        {"2_N": "Normalize"} if normalize else {}
    )
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(types.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling/config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))


def embedding_operations(shape: str, lengths: list[int]) -> float:
    """Return the multiplications and additions of all products of texts of these lengths."""
    if shape in DECODER_SHAPES:
        return sum(layer_operations(DECODER_SHAPES[shape], length) for length in lengths)
    hidden, layers, *_ = ENCODER_SHAPES[shape]
    return sum(2.0 * n * encoder_weights(shape) + 4.0 * layers * n * n * hidden for n in lengths)


def embedding_weights(shape: str) -> float:
    """Return the number of weights of all layers."""
    if shape in DECODER_SHAPES:
        return layer_operations(DECODER_SHAPES[shape], 1) / 2
    return encoder_weights(shape)


def encoder_weights(shape: str) -> float:
    """Return the number of weights of the layers of an encoder, without biases and norms."""
    hidden, layers, _, inner, _ = ENCODER_SHAPES[shape]
    return float(layers * hidden * (4 * hidden + 2 * inner))
