# SPDX-License-Identifier: Apache-2.0
"""BERT: learned positions and token types."""

from __future__ import annotations

from typing import Any, ClassVar

from rtp_llm.layers import Layer, LayerOptions
from rtp_llm.models.config import ModelConfig
from rtp_llm.models.encoder_config import EncoderConfig
from rtp_llm.models.encoders.encoder import EncoderModel
from rtp_llm.models.encoders.label_head import HeadNames
from rtp_llm.models.encoders.post_norm import PostNormEncoder, PostNormNames
from rtp_llm.models.encoders.read_config import encoder_config, head_dim
from rtp_llm.models.raw_config import RawConfig


class BertModel(EncoderModel):
    """Also as the encoder of a BertForMaskedLM, whose head is not loaded."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
    }
    TEXT_PREFIXES = ("bert.",)
    EMBEDDING = "embeddings.word_embeddings.weight"
    IGNORED_WEIGHTS = ("position_ids",)
    IGNORED_PREFIXES: ClassVar[tuple[str, ...]] = ("model.pooler.", "cls.", "lm_head.")
    QKV: ClassVar[tuple[str, ...]] = (
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
    )
    NAMES: ClassVar[PostNormNames] = PostNormNames()
    TEXT_HEAD = HeadNames("model.pooler.dense")

    @classmethod
    def first_position(cls, raw: RawConfig) -> int:
        """The row of the position embeddings that belongs to the first token."""
        return 0

    @classmethod
    def read_config(cls, raw: RawConfig) -> ModelConfig:
        rows, first = raw.integer("max_position_embeddings"), cls.first_position(raw)
        encoder = EncoderConfig(
            longest=rows - first,
            scale=head_dim(raw) ** -0.5,
            position_rows=rows,
            first_position=first,
            type_rows=raw.count("type_vocab_size"),
        )
        return encoder_config(raw, encoder, norm_eps=raw.number("layer_norm_eps"))

    def make_layers(self, options: LayerOptions) -> Layer:
        positions = self.options.num_positions
        shapes = self.local_shapes
        return PostNormEncoder(self.config, shapes, self.NAMES, options, positions)
