# SPDX-License-Identifier: Apache-2.0
"""The config.json that a model in a GGUF file would have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rtp_llm.gguf import GgufModel
from rtp_llm.gguf.tokens import find_tokens
from rtp_llm.model_folder import ModelFilesError, name_of, open_file
from rtp_llm.models.config import ModelConfig
from rtp_llm.models.gguf.architectures import (
    GgufArchitecture,
    Values,
    find_architecture,
    known_gguf_architectures,
    num_layers,
)
from rtp_llm.models.gguf.keys import GgufKeys
from rtp_llm.models.refusals import refuse
from rtp_llm.models.registry import model_tasks

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
# Of rerankers, the rows of the head for "yes" and "no".
ANSWERS = "cls.output.weight"
# What the angles of pairs of channels are divided by, as in Llama 3.1.
ROPE_DIVISORS = "rope_freqs.weight"
_NO_TOKEN = 2**32 - 1
_SCALINGS = (None, "none", "linear", "yarn")


def gguf_architecture(model: GgufModel) -> GgufArchitecture:
    """The row of the file's architecture; UnsupportedModelError for one that is not known."""
    found = find_architecture(GgufKeys(model))
    if found is None:
        known = ", ".join(known_gguf_architectures())
        name = name_of(model.metadata.architecture)
        raise refuse("GGUF architecture", f"{name} in {model.metadata.file}; supported: {known}")
    return found


def gguf_values(model: GgufModel) -> Values:
    """The keys and values of config.json, as far as they are needed here.

    Raises ModelConfigError or GgufError for missing and broken keys.
    """
    row, keys = gguf_architecture(model), GgufKeys(model)
    _check_head(row, keys)
    heads = keys.needed("attention.head_count")
    size = keys.first if row.differing_layers else keys.integer
    values: Values = {
        "architectures": [row.name],
        "dtype": "bfloat16",
        "vocab_size": keys.size(0, [EMBEDDING, HEAD]),
        "hidden_size": keys.needed("embedding_length"),
        "intermediate_size": size("feed_forward_length") or 1,
        "num_hidden_layers": num_layers(keys),
        "num_attention_heads": heads,
        "num_key_value_heads": size("attention.head_count_kv") or heads,
        **_head_dim(keys, heads),
        "max_position_embeddings": keys.needed("context_length"),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.number("rope.freq_base") or 10000.0,
        "rope_scaling": _rope_scaling(keys),
        "is_causal": keys.flag("attention.causal"),
        "tie_word_embeddings": HEAD not in model.tensors,
        "bos_token_id": _token_id(model, "bos"),
        "eos_token_id": _token_id(model, "eos"),
    }
    return {**values, **row.values(keys)}


def _check_head(row: GgufArchitecture, keys: GgufKeys) -> None:
    """Refuse heads for scores but for both layers of BERT's, and for those of the tokens "yes" and
    "no"."""
    tasks = model_tasks(row.name)
    if keys.metadata.pooling != "rank" or "classify" in tasks:
        return
    why = _why_no_answers(keys) if "score" in tasks else f"{row.name} has no scores"
    if why:
        found = f"pooling_type is 4 in {keys.metadata.file}: {why}"
        raise refuse("classification head of a GGUF file", found, row.name)


def _why_no_answers(keys: GgufKeys) -> str:
    """Why scores are not made of the logits of "yes" and "no"; empty if they are.

    Converters store the rows of both answers again, as a head without a bias.
    """
    for name, tensor in keys.model.tensors.items():
        wanted = 2, keys.integer("embedding_length")
        if name.startswith("cls.") and (name != ANSWERS or tensor.shape != wanted):
            return f"{name_of(name)} {list(tensor.shape)} is not the head of two answers"
    if len(find_tokens(keys.metadata, ("yes", "no"))) < 2:
        return 'it has no tokens "yes" and "no"'
    return ""


def adapted(config: ModelConfig, model: GgufModel) -> ModelConfig:
    """`config` with what the file says and config.json could not."""
    return _with_rope_divisors(gguf_architecture(model).adapt(config), model)


def _with_rope_divisors(config: ModelConfig, model: GgufModel) -> ModelConfig:
    """`config` with the divisors of angles that the file holds as a tensor, if it does."""
    tensor = model.tensors.get(ROPE_DIVISORS)
    if tensor is None:
        return config
    pairs = config.rope.rotary_dim // 2
    if tensor.type.name != "F32" or tensor.shape != (pairs,):
        raise refuse("other rope type", f"{ROPE_DIVISORS} is {tensor.type.name} {tensor.shape}")
    with open_file(tensor.file) as file:
        file.seek(tensor.offset)
        content = file.read(tensor.size)
    divisors = np.frombuffer(content, np.float32)
    if len(divisors) != pairs or not np.all(np.isfinite(divisors) & (divisors > 0)):
        raise ModelFilesError(f"{tensor.file}: {ROPE_DIVISORS} must hold positive numbers")
    return replace(config, rope=replace(config.rope, divisors=tuple(divisors.tolist())))


def _token_id(model: GgufModel, name: str) -> int | None:
    found = model.metadata.integer(f"tokenizer.ggml.{name}_token_id")
    return None if found == _NO_TOKEN else found


def _head_dim(keys: GgufKeys, heads: int) -> Values:
    width = keys.integer("attention.key_length")
    other = keys.integer("attention.value_length")
    has_latents = keys.integer("attention.kv_lora_rank") is not None
    if not has_latents and other is not None and width is not None and other != width:
        raise keys.error("attention.value_length", f"is {other}, and key_length {width}")
    width = width or keys.needed("embedding_length") // max(1, heads)
    rotated = keys.integer("rope.dimension_count")
    return {"head_dim": width, "partial_rotary_factor": (rotated or width) / max(1, width)}


def _rope_scaling(keys: GgufKeys) -> Values | None:
    kind = keys.text("rope.scaling.type")
    if kind not in _SCALINGS:
        raise refuse("other rope type", f"rope.scaling.type {kind} in {keys.metadata.file}")
    factor = keys.number("rope.scaling.factor")
    if kind in (None, "none") or not factor:
        return None
    scaling: Values = {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = keys.integer(
            "rope.scaling.original_context_length"
        )
    return {key: value for key, value in scaling.items() if value is not None}
