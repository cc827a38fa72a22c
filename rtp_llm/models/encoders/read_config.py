# SPDX-License-Identifier: Apache-2.0
"""Reads what config.json and sentence_bert_config.json say of an encoder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rtp_llm.layers.weights.stored_config import read_stored_modules
from rtp_llm.model_folder import read_json
from rtp_llm.models.config import ModelConfig, number_type
from rtp_llm.models.encoder_config import EncoderConfig
from rtp_llm.models.encoders.label_head import read_labels
from rtp_llm.models.raw_config import ModelConfigError, RawConfig
from rtp_llm.models.refusals import architecture_of, refuse
from rtp_llm.ops.rope.rotary_table import RopeConfig

NO_ROPE = RopeConfig(style="none", rotary_dim=0)
_SENTENCES = "sentence_bert_config.json"


def encoder_config(
    raw: RawConfig, encoder: EncoderConfig, *, norm_eps: float, **more: Any
) -> ModelConfig:
    """The config of an encoder with the plain keys of BERT; `more` are further fields."""
    _check(raw)
    check_heads(raw, head_dim(raw))
    hidden, heads = raw.integer("hidden_size"), raw.integer("num_attention_heads")
    layers = raw.integer("num_hidden_layers")
    values: dict[str, Any] = {
        "num_kv_heads": heads,
        "head_dim": head_dim(raw),
        "rope": NO_ROPE,
        "qkv_bias": True,
        "output_bias": True,
        "mlp_bias": True,
        "qk_norm": False,
        "layer_windows": (0,) * layers,
        **more,
    }
    return ModelConfig(
        architecture=architecture_of(raw.values),
        vocab_size=raw.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=raw.integer("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        rms_norm_eps=norm_eps,
        max_position_embeddings=_longest_sentence(raw, encoder),
        tie_word_embeddings=False,
        hidden_act=raw.text("hidden_act"),
        dtype=number_type(raw),
        eos_token_ids=(),
        bos_token_id=None,
        stored=read_stored_modules(raw.values),
        encoder=encoder,
        classifier=read_labels(raw),
        **values,
    )


def with_encoder(raw: RawConfig, config: ModelConfig, encoder: EncoderConfig) -> ModelConfig:
    """The config of a decoder's layers that read both ways."""
    check_heads(raw, config.head_dim)
    longest = _longest_sentence(raw, encoder)
    config = replace(config, max_position_embeddings=longest, encoder=encoder)
    return replace(config, tie_word_embeddings=False, eos_token_ids=(), bos_token_id=None)


def head_dim(raw: RawConfig) -> int:
    """Channels of a head, where config.json gives the heads' number and their sum."""
    hidden, heads = raw.integer("hidden_size"), raw.integer("num_attention_heads")
    if hidden % heads:
        raise raw.error("hidden_size", hidden, f"a multiple of num_attention_heads ({heads})")
    return hidden // heads


def check_heads(raw: RawConfig, size: int) -> None:
    """Raise UnsupportedModelError for heads that ops.varlen_attention does not take."""
    if size % 8 or not 16 <= size <= 256:
        found = f"{raw.file}: heads have {size} channels"
        raise refuse("head size of an encoder", found, architecture_of(raw.values))


def renamed(raw: RawConfig, names: dict[str, str]) -> RawConfig:
    """`raw` with BERT's names for keys that an architecture calls otherwise."""
    values = {names.get(key, key): value for key, value in raw.values.items()}
    return replace(raw, values=values)


def _check(raw: RawConfig) -> None:
    if (act := raw.text("hidden_act")) != "gelu":
        raise raw.error("hidden_act", act, '"gelu", the exact one')
    for key in ("is_decoder", "add_cross_attention"):
        if raw.get(key):
            raise refuse("encoder that is used as a decoder", f"config.json: {key} is set")
    kind = raw.get("position_embedding_type")
    if kind not in (None, "absolute", "rope"):
        raise raw.error("position_embedding_type", kind, '"absolute"')


def _longest_sentence(raw: RawConfig, encoder: EncoderConfig) -> int:
    """The tokens that sentence-transformers would keep of a text: as many as there are positions,
    unless its file says otherwise."""
    longest = read_json(raw.folder / _SENTENCES).get("max_seq_length")
    if longest is None:
        return encoder.longest
    if isinstance(longest, bool) or not isinstance(longest, int) or longest < 2:
        file = raw.folder / _SENTENCES
        raise ModelConfigError(f"{file}: max_seq_length must be an integer from 2")
    return min(encoder.longest, longest)
