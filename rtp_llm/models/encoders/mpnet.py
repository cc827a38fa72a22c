# SPDX-License-Identifier: Apache-2.0
"""MPNet: BERT without token types, with a bias of scores by relative position."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from rtp_llm.models.config import ModelConfig
from rtp_llm.models.encoders.bert import BertModel
from rtp_llm.models.encoders.label_head import HeadNames
from rtp_llm.models.encoders.post_norm import PostNormNames
from rtp_llm.models.raw_config import RawConfig

# The padding token is this one whatever config.json says.
_PADDING = 1
# What the bias is stored for, and how many buckets it is read as, are the same for all models.
_BUCKETS = 32


class MPNetModel(BertModel):
    """All layers share the bias."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512,
        "relative_attention_num_buckets": _BUCKETS,
        "type_vocab_size": 0,
    }
    TEXT_PREFIXES = ("mpnet.",)
    TEXT_HEAD = HeadNames("classifier.dense", last="classifier.out_proj")
    QKV = ("attention.attn.q", "attention.attn.k", "attention.attn.v")
    NAMES = PostNormNames(attention_output="attention.attn.o", attention_norm="attention.LayerNorm")

    @classmethod
    def first_position(cls, raw: RawConfig) -> int:
        return _PADDING + 1

    @classmethod
    def read_config(cls, raw: RawConfig) -> ModelConfig:
        buckets = raw.integer("relative_attention_num_buckets")
        if buckets != _BUCKETS:
            raise raw.error("relative_attention_num_buckets", buckets, str(_BUCKETS))
        config = super().read_config(raw)
        assert config.encoder is not None
        return replace(config, encoder=replace(config.encoder, position_buckets=buckets))
