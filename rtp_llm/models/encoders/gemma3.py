# SPDX-License-Identifier: Apache-2.0
"""EmbeddingGemma: the layers of Gemma 3, both ways, most of them with a window."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from rtp_llm.layers import Layer, LayerOptions
from rtp_llm.models.config import ModelConfig
from rtp_llm.models.decoder import Decoder
from rtp_llm.models.decoders.gemma import GEMMA3_DEFAULTS, gemma3_config, gemma3_features
from rtp_llm.models.encoder_config import EncoderConfig
from rtp_llm.models.encoders.encoder import EncoderModel
from rtp_llm.models.encoders.read_config import with_encoder
from rtp_llm.models.raw_config import RawConfig


class Gemma3TextModel(EncoderModel):
    """`sliding_window` counts both sides: a token sees half of it on either."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = GEMMA3_DEFAULTS
    OVERFLOWS_FLOAT16 = True
    IGNORED_WEIGHTS = ("lm_head.weight",)

    @classmethod
    def read_config(cls, raw: RawConfig) -> ModelConfig:
        if not raw.flag("use_bidirectional_attention"):
            found = raw.get("use_bidirectional_attention")
            raise raw.error("use_bidirectional_attention", found, "true")
        features = gemma3_features(raw, raw.integer("sliding_window") // 2)
        config = gemma3_config(raw, features)
        encoder = EncoderConfig(
            longest=config.max_position_embeddings, scale=config.attention_scale
        )
        return with_encoder(raw, config, encoder)

    def make_layers(self, options: LayerOptions) -> Layer:
        config, stage = self.config, range(self.config.num_layers)
        backends = [None] * config.num_layers
        layers = replace(self.options.layer_options(), packs_weights=True)
        return Decoder(config, self.options, layers, self.local_shapes, backends, stage)
