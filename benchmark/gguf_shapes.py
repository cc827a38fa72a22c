# SPDX-License-Identifier: Apache-2.0
"""GGUF files with random weights in well-known shapes, of the types that llama.cpp's recipes give.

Call `benchmark.llama_cpp_peer.why_not_run` first: it makes the package `gguf` importable.
"""

from __future__ import annotations

import importlib
import os
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rtp_llm.gguf import TensorType
from rtp_llm.gguf.types import TYPES

RECIPES = ("Q4_K_M", "Q8_0")
# What takes the place of a type where rows are no whole blocks of it.
_INSTEAD = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}
_BY_NAME = {kind.name: kind for kind in TYPES.values()}
_RANDOM = 2**14  # blocks that are drawn; tensors repeat them


@dataclass(frozen=True)
class GgufShape:
    """A model whose logits have the weight of the embedding."""

    architecture: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    rope_theta: float = 1e6
    more: dict[str, Any] = field(default_factory=dict)


GGUF_SHAPES = {
    "gemma3-270m": GgufShape(
        "gemma3", 18, 640, 2048, 4, 1, 256, 262144, more={"attention.sliding_window": 512}
    ),
    "qwen3-0.6b": GgufShape("qwen3", 28, 1024, 3072, 16, 8, 128, 151936),
    "qwen3-4b": GgufShape("qwen3", 36, 2560, 9728, 32, 8, 128, 151936),
    "qwen3-8b": GgufShape("qwen3", 36, 4096, 12288, 32, 8, 128, 151936),
    "small": GgufShape("qwen3", 2, 512, 1024, 4, 2, 128, 32768),
}


def gguf_file(shape: str, recipe: str, folder: pathlib.Path, layers: int = 0) -> pathlib.Path:
    """The file of a shape in `folder`, written unless it is there; `layers`: only so many."""
    count = layers or GGUF_SHAPES[shape].layers
    path = folder / f"{shape}-{count}-{recipe}.gguf"
    if not path.exists():
        partial = path.with_suffix(f".{os.getpid()}")
        _write(GGUF_SHAPES[shape], recipe, count, partial)
        partial.rename(path)
    return path


def block_bytes(shape: str, recipe: str, layers: int = 0) -> int:
    """Bytes of the weights that each step multiplies with."""
    made = GGUF_SHAPES[shape]
    return sum(
        rows * columns // kind.elements * kind.block_bytes
        for _, kind, rows, columns in _matrices(made, recipe, layers or made.layers)
    )


def _matrices(
    shape: GgufShape, recipe: str, layers: int
) -> Iterator[tuple[str, TensorType, int, int]]:
    """Name, type, rows and columns of each."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "token_embd", _kind(recipe, True, shape.hidden), shape.vocabulary, shape.hidden
    for layer in range(layers):
        more = _more_bits(layer, layers)
        for name, larger, rows, columns in (
            ("attn_q", False, queries, shape.hidden),
            ("attn_k", False, keys, shape.hidden),
            ("attn_v", more, keys, shape.hidden),
            ("attn_output", False, shape.hidden, queries),
            ("ffn_gate", False, shape.intermediate, shape.hidden),
            ("ffn_up", False, shape.intermediate, shape.hidden),
            ("ffn_down", more, shape.hidden, shape.intermediate),
        ):
            yield f"blk.{layer}.{name}", _kind(recipe, larger, columns), rows, columns


def _more_bits(layer: int, layers: int) -> bool:
    """Whether Q4_K_M gives V and down projections of a layer six bits."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _kind(recipe: str, larger: bool, columns: int) -> TensorType:
    name = recipe if recipe == "Q8_0" else "Q6_K" if larger else "Q4_K"
    kind = _BY_NAME[name]
    return kind if columns % kind.elements == 0 else _BY_NAME[_INSTEAD[name]]


def _vectors(shape: GgufShape, layers: int) -> Iterator[tuple[str, int]]:
    yield "output_norm", shape.hidden
    for layer in range(layers):
        names = ["attn_norm", "ffn_norm"]
        if shape.architecture == "gemma3":
            names += ["post_attention_norm", "post_ffw_norm"]
        for name in names:
            yield f"blk.{layer}.{name}", shape.hidden
        for name in ("attn_q_norm", "attn_k_norm"):
            yield f"blk.{layer}.{name}", shape.head_dim


def _random_blocks(kind: TensorType) -> np.ndarray:
    """uint8 [blocks, bytes]: weights of about 0.02."""
    blocks = np.frombuffer(
        bytearray(np.random.default_rng(7).bytes(_RANDOM * kind.block_bytes)), np.uint8
    ).reshape(_RANDOM, kind.block_bytes)
    # The scale of a block, and what is taken away: it centres the weights where scales are alike.
    scale, least = {"Q8_0": (3e-4, 0.0), "Q5_0": (2e-3, 0.0)}.get(kind.name, (1e-4, 7.5e-4))
    at = 208 if kind.name == "Q6_K" else 0
    blocks[:, at : at + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    if kind.name in ("Q4_K", "Q5_K"):
        blocks[:, 2:4] = np.frombuffer(np.float16(least).tobytes(), np.uint8)
        blocks[:, 8:12] = blocks[:, 4:8]
    return blocks


def _write(shape: GgufShape, recipe: str, layers: int, output: pathlib.Path) -> None:
    package: Any = importlib.import_module("gguf")
    writer = package.GGUFWriter(output, shape.architecture)
    _write_shape(writer, shape, layers)
    _write_vocabulary(writer, shape.vocabulary)
    pools: dict[str, np.ndarray] = {}
    for name, kind, rows, columns in _matrices(shape, recipe, layers):
        size = rows * columns // kind.elements * kind.block_bytes
        if size > len(pools.get(kind.name, b"")):
            pools[kind.name] = np.resize(_random_blocks(kind), size)
        blocks = pools[kind.name][:size].reshape(rows, -1)
        writer.add_tensor(f"{name}.weight", blocks, raw_dtype=package.GGMLQuantizationType(kind.id))
    for name, size in _vectors(shape, layers):
        writer.add_tensor(f"{name}.weight", np.ones(size, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_shape(writer: Any, shape: GgufShape, layers: int) -> None:
    writer.add_block_count(layers)
    writer.add_context_length(4096)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(1e-6)
    for key, value in shape.more.items():
        writer.add_uint32(f"{shape.architecture}.{key}", value)


def _write_vocabulary(writer: Any, size: int) -> None:
    """Words are made up: only their ids are used."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([f"t{i}" for i in range(size)])
    writer.add_token_types([1] * size)
    writer.add_token_merges(["t 0"])
    writer.add_eos_token_id(size - 1)
    writer.add_add_bos_token(False)
