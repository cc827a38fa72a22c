# SPDX-License-Identifier: Apache-2.0
"""EmbeddingGemma: the layers of Gemma 3, both ways, most of them with a window."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rtp_llm.attention import ForwardBatch
from rtp_llm.layers import Layer, LayerOptions, make_embedding
from rtp_llm.layers.encoder_attention import EncoderAttentionShape, EncoderMixer
from rtp_llm.models.config import Features, ModelConfig, make_config
from rtp_llm.models.encoder_config import EncoderConfig
from rtp_llm.models.encoders.encoder import EncoderModel
from rtp_llm.models.encoders.layer_types import FULL, NEAR, RotaryByType, layer_types, rope_of_type
from rtp_llm.models.encoders.read_config import renamed, with_encoder
from rtp_llm.models.gemma3_layer import Gemma3Layer, gemma_norm
from rtp_llm.models.raw_config import RawConfig


class Gemma3TextModel(EncoderModel):
    """`sliding_window` counts both sides: a token sees half of it on either."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 131072,
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-6,
        "rope_local_base_freq": 10000.0,
        "rope_theta": 1000000.0,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
    }
    IGNORED_WEIGHTS = ("lm_head.weight",)

    @classmethod
    def read_config(cls, raw: RawConfig) -> ModelConfig:
        raw = renamed(raw, {"hidden_activation": "hidden_act"})
        if not raw.flag("use_bidirectional_attention"):
            found = raw.get("use_bidirectional_attention")
            raise raw.error("use_bidirectional_attention", found, "true")
        size, near = raw.integer("head_dim"), raw.integer("sliding_window") // 2
        kinds = layer_types(raw, raw.integer("sliding_window_pattern"), full_last=True)
        encoder = EncoderConfig(
            longest=raw.integer("max_position_embeddings"),
            scale=raw.number("query_pre_attn_scalar") ** -0.5,
            local_rope=rope_of_type(raw, NEAR, "rope_local_base_freq", size),
        )
        bias = raw.flag("attention_bias")
        full = rope_of_type(raw, FULL, "rope_theta", size)
        plain = replace(raw, values={**raw.values, "rope_parameters": None, "rope_scaling": None})
        windows = tuple(near if kind == NEAR else 0 for kind in kinds)
        features = Features(
            qkv_bias=bias, output_bias=bias, qk_norm=True, norm_offset=1.0, layer_windows=windows
        )
        config = replace(make_config(plain, features), rope=full)
        return with_encoder(raw, config, encoder)

    def make_layers(self, options: LayerOptions) -> Layer:
        return _Layers(self.config, self.local_shapes, options, self.options.num_positions)


class _Layers(Layer):
    def __init__(
        self,
        config: ModelConfig,
        shapes: tuple[EncoderAttentionShape, ...],
        options: LayerOptions,
        num_positions: int,
    ) -> None:
        super().__init__()
        self.embed_tokens = make_embedding(config.vocab_size, config.hidden_size, options)
        self._scale = float(torch.tensor(config.hidden_size**0.5, dtype=options.dtype))
        self.rotary = RotaryByType(config, num_positions, options.device)
        self._windows = [shape.window for shape in shapes]
        self.layers = nn.ModuleList(
            _make_layer(config, shape, options.inside(f"layers.{index}"))
            for index, shape in enumerate(shapes)
        )
        self.norm = gemma_norm(config, options)

    def forward(self, batch: ForwardBatch) -> Tensor:
        residual = self.embed_tokens(batch.token_ids).mul_(self._scale)
        pending: Tensor | None = None
        for layer, window in zip(self.layers, self._windows, strict=True):
            pending = layer(pending, residual, self.rotary.cos_sin(window), batch)
        return self.norm.after(pending, residual)


def _make_layer(
    config: ModelConfig, shape: EncoderAttentionShape, options: LayerOptions
) -> Gemma3Layer:
    return Gemma3Layer(config, EncoderMixer(shape, options.inside("self_attn")), options)
