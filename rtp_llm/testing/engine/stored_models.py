# SPDX-License-Identifier: Apache-2.0
"""Tiny models in every stored format, for walks through tables of what goes with what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rtp_llm.layers.weights.int_formats import Gptq
from rtp_llm.testing.gguf.models import save_gguf
from rtp_llm.testing.gguf.mtp import save_mtp_gguf
from rtp_llm.testing.gguf.writer import Typed
from rtp_llm.testing.model_folders import digits
from rtp_llm.testing.models.fp8_checkpoints import store_as_fp8
from rtp_llm.testing.models.int_checkpoints import store_as_integers
from rtp_llm.testing.models.mtp_models import save_mtp_model
from rtp_llm.testing.models.mxfp4_checkpoints import store_as_mxfp4
from rtp_llm.testing.models.stored_checkpoints import PACKINGS, store_packed
from rtp_llm.testing.models.transformers_models import save_model

Store = Callable[[Path, Any, Any], Path]


@dataclass(frozen=True)
class StoredKind:
    """How to make a model of a format: the architecture's kind, and one with an MTP layer ("" if
    there is none in the format), `sizes` of their configs, and `store`, which turns the folder of
    the model given with it (and with its MTP layer) into the format and returns what is served."""

    kind: str
    store: Store
    mtp: str = ""
    sizes: dict[str, Any] = field(default_factory=dict)

    def save(self, folder: Path, words: int, *, mtp: bool = False) -> tuple[Path, Any]:
        """A random model of `words` tokens and what transformers has of it; `words` 11: the
        tokenizer is `digits`."""
        sizes = {"vocab_size": words, "eos_token_id": 2, **self.sizes}
        layer = None
        if mtp:
            model, layer = save_mtp_model(folder, self.mtp, **sizes)
        else:
            model = save_model(folder, self.kind, **sizes)
        digits().save(str(folder / "tokenizer.json"))
        return self.store(folder, model, layer), model


def _floats(folder: Path, model: Any, layer: Any) -> Path:
    return folder


def _fp8(folder: Path, model: Any, layer: Any) -> Path:
    store_as_fp8(folder)
    return folder


def _mxfp4(folder: Path, model: Any, layer: Any) -> Path:
    store_as_mxfp4(folder)
    return folder


def _packed(name: str) -> Store:
    def store(folder: Path, model: Any, layer: Any) -> Path:
        store_packed(folder, PACKINGS[name])
        return folder

    return store


def _gptq(folder: Path, model: Any, layer: Any) -> Path:
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}
    store_as_integers(folder, config, Gptq(group=32, ordered=True), torch.float32)
    return folder


def _gguf(folder: Path, model: Any, layer: Any) -> Path:
    tokens = digits()
    words = [tokens.id_to_token(token) for token in range(tokens.get_vocab_size())]
    tokenizer = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": Typed("i32", [3] * 3 + [1] * (len(words) - 3)),
        "tokenizer.ggml.merges": Typed("string", []),
        "tokenizer.ggml.eos_token_id": 2,
    }
    file = folder / "tiny.gguf"
    if layer is not None:
        return save_mtp_gguf(file, model, layer, "qwen35", "Q8_0", tokenizer)
    return save_gguf(file, model, "qwen3", "Q8_0", more=tokenizer)[0]


# By the columns of docs/formats.md.
STORED: dict[str, StoredKind] = {
    "floats": StoredKind("llama", _floats, "qwen3_5"),
    "FP8": StoredKind("qwen3", _fp8, "qwen3_5", {"head_dim": 128}),
    "GGUF blocks": StoredKind(
        "qwen3", _gguf, "qwen3_5", {"intermediate_size": 128, "num_attention_heads": 8}
    ),
    "integers in groups": StoredKind(
        "qwen3", _gptq, "qwen3_5", {"hidden_size": 128, "intermediate_size": 192}
    ),
    "int8": StoredKind("qwen3", _packed("w8a8"), "qwen3_5"),
    "MXFP4": StoredKind("gpt_oss", _mxfp4, sizes={"intermediate_size": 96}),
    "NVFP4": StoredKind("llama", _packed("nvfp4"), "qwen3_5"),
    "nf4": StoredKind("llama", _packed("nested nf4"), sizes={"intermediate_size": 128}),
    "MLX": StoredKind("llama", _packed("mlx"), sizes={"intermediate_size": 128}),
}
