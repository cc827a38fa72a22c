# SPDX-License-Identifier: Apache-2.0
"""Qwen2 whose config.json has `is_causal` false, as gte-Qwen2: it reads prompts both ways."""

from __future__ import annotations

from typing import Any, ClassVar

from rtp_llm.layers import Layer, LayerOptions
from rtp_llm.models.config import Features, ModelConfig, make_config
from rtp_llm.models.decoder import Decoder
from rtp_llm.models.decoders.qwen2 import Qwen2ForCausalLM
from rtp_llm.models.encoder_config import EncoderConfig
from rtp_llm.models.encoders.encoder import EncoderModel
from rtp_llm.models.encoders.read_config import with_encoder
from rtp_llm.models.raw_config import RawConfig


class Qwen2BidirectionalModel(EncoderModel):
    """The layers of Qwen2ForCausalLM, without its head."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = Qwen2ForCausalLM.CONFIG_DEFAULTS
    IGNORED_WEIGHTS = ("rotary_emb.inv_freq", "lm_head.weight")

    @classmethod
    def read_config(cls, raw: RawConfig) -> ModelConfig:
        if raw.flag("use_sliding_window"):
            raise raw.error("use_sliding_window", True, "false in a model that reads both ways")
        config = make_config(raw, Features(qkv_bias=True))
        encoder = EncoderConfig(longest=config.context_limit, scale=config.head_dim**-0.5)
        return with_encoder(raw, config, encoder)

    def make_layers(self, options: LayerOptions) -> Layer:
        config, layers = self.config, range(self.config.num_layers)
        backends = [None] * config.num_layers
        shapes = self.local_shapes
        return Decoder(config, self.options, self.options.layer_options(), shapes, backends, layers)
