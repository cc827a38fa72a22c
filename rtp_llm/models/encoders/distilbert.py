# SPDX-License-Identifier: Apache-2.0
"""DistilBERT: BERT without token types, under names of its own."""

from __future__ import annotations

from typing import Any, ClassVar

from rtp_llm.models.config import ModelConfig
from rtp_llm.models.encoders.bert import BertModel
from rtp_llm.models.encoders.label_head import HeadNames
from rtp_llm.models.encoders.post_norm import PostNormNames
from rtp_llm.models.encoders.read_config import renamed
from rtp_llm.models.raw_config import RawConfig

_KEYS = {
    "activation": "hidden_act",
    "dim": "hidden_size",
    "hidden_dim": "intermediate_size",
    "n_heads": "num_attention_heads",
    "n_layers": "num_hidden_layers",
}


class DistilBertModel(BertModel):
    """Positions in sines are stored like learned ones."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512,
        "type_vocab_size": 0,
    }
    TEXT_PREFIXES = ("distilbert.",)
    TEXT_HEAD = HeadNames("pre_classifier", "relu")
    IGNORED_PREFIXES = ("vocab_transform.", "vocab_layer_norm.", "vocab_projector.")
    QKV = ("attention.q_lin", "attention.k_lin", "attention.v_lin")
    NAMES = PostNormNames(
        layers="transformer.layer",
        attention_output="attention.out_lin",
        attention_norm="sa_layer_norm",
        up="ffn.lin1",
        down="ffn.lin2",
        norm="output_layer_norm",
    )

    @classmethod
    def read_config(cls, raw: RawConfig) -> ModelConfig:
        return super().read_config(renamed(raw, _KEYS))
