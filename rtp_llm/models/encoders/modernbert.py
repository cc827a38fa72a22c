# SPDX-License-Identifier: Apache-2.0
"""ModernBERT: norms before attention and feed-forward, rotation, windows in most layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor, nn

from rtp_llm.attention import ForwardBatch
from rtp_llm.layers import Layer, LayerOptions, make_embedding, make_linear
from rtp_llm.layers.activation import GatedActivation
from rtp_llm.layers.encoder_attention import EncoderAttention, EncoderAttentionShape
from rtp_llm.layers.layer_norm import LayerNorm, residual_layer_norm
from rtp_llm.layers.weights.shard import Shard, concatenated
from rtp_llm.layers.weights.shard_targets import LinearShards
from rtp_llm.models.config import ModelConfig
from rtp_llm.models.encoder_config import EncoderConfig
from rtp_llm.models.encoders.encoder import EncoderModel
from rtp_llm.models.encoders.label_head import HeadNames
from rtp_llm.models.encoders.read_config import encoder_config, head_dim, renamed
from rtp_llm.models.layer_types import FULL, NEAR, RotaryByType, layer_types, rope_of_type
from rtp_llm.models.raw_config import RawConfig


class ModernBertModel(EncoderModel):
    """A token of a layer with a window sees half of ``local_attention`` on either side."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {
        "classifier_activation": "gelu",
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "hidden_act": "gelu",
        "local_attention": 128,
        "local_rope_theta": 10000.0,
        "max_position_embeddings": 8192,
        "norm_eps": 1e-5,
    }
    TEXT_PREFIXES = ("model.",)
    EMBEDDING = "embeddings.tok_embeddings.weight"
    IGNORED_PREFIXES = ("head.", "decoder.")
    QKV = ("Wqkv",)
    TEXT_HEAD = HeadNames("head.dense", "gelu", norm="head.norm")
    TOKEN_HEAD = TEXT_HEAD

    @classmethod
    def read_config(cls, raw: RawConfig) -> ModelConfig:
        raw = renamed(raw, {"hidden_activation": "hidden_act"})
        if (act := raw.text("classifier_activation")) != "gelu":
            raise raw.error("classifier_activation", act, '"gelu", the exact one')
        local = raw.integer("local_attention") // 2
        kinds = layer_types(raw, raw.integer("global_attn_every_n_layers"))
        encoder = EncoderConfig(
            longest=raw.integer("max_position_embeddings"),
            scale=head_dim(raw) ** -0.5,
            norm_bias=raw.flag("norm_bias"),
            head_bias=raw.flag("classifier_bias"),
        )
        bias = raw.flag("attention_bias")
        return encoder_config(
            raw,
            encoder,
            norm_eps=raw.number("norm_eps"),
            rope=rope_of_type(raw, FULL, "global_rope_theta", head_dim(raw)),
            local_rope=rope_of_type(raw, NEAR, "local_rope_theta", head_dim(raw)),
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=raw.flag("mlp_bias"),
            layer_windows=tuple(local if kind == NEAR else 0 for kind in kinds),
        )

    def head_names(self, names: HeadNames) -> HeadNames:
        encoder = self.config.encoder
        assert encoder is not None
        return replace(names, first_bias=encoder.head_bias, norm_bias=encoder.norm_bias)

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
        self.embeddings = _Embeddings(config, options.inside("embeddings"))
        self.rotary = RotaryByType(config, num_positions, options.device)
        self._windows = [shape.window for shape in shapes]
        self.layers = nn.ModuleList(
            _ModernBertLayer(index, config, shape, options.inside(f"layers.{index}"))
            for index, shape in enumerate(shapes)
        )
        self.final_norm = _norm(config, options)

    def forward(self, batch: ForwardBatch) -> Tensor:
        residual = self.embeddings.norm(self.embeddings.tok_embeddings(batch.token_ids))
        pending: Tensor | None = None
        for layer, window in zip(self.layers, self._windows, strict=True):
            pending = layer(pending, residual, batch, self.rotary.cos_sin(window))
        assert pending is not None
        return self.final_norm.add(pending, residual)


class _Embeddings(Layer):
    def __init__(self, config: ModelConfig, options: LayerOptions) -> None:
        super().__init__()
        self.tok_embeddings = make_embedding(config.vocab_size, config.hidden_size, options)
        self.norm = _norm(config, options)


class _ModernBertLayer(Layer):
    """Each half adds what the one before it left pending, and normalises the sum; the first layer's
    attention reads the embeddings as they are."""

    attn_norm: LayerNorm | None

    def __init__(
        self,
        index: int,
        config: ModelConfig,
        shape: EncoderAttentionShape,
        options: LayerOptions,
    ) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.attn_norm = _norm(config, options) if index else None
        self.attn = _Attention(config, shape, options.inside("attn"))
        self.mlp_norm = _norm(config, options)
        self.mlp = _MLP(hidden, config, options.inside("mlp"))

    def forward(
        self,
        pending: Tensor | None,
        residual: Tensor,
        batch: ForwardBatch,
        cos_sin: Tensor | None,
    ) -> Tensor:
        x = residual
        if self.attn_norm is not None:
            assert pending is not None
            x = self.attn_norm.add(pending, residual)
        x = self.mlp_norm.add(self.attn(x, batch, cos_sin), residual)
        return self.mlp(x)  # type: ignore[no-any-return]


class _Attention(Layer):
    def __init__(
        self, config: ModelConfig, shape: EncoderAttentionShape, options: LayerOptions
    ) -> None:
        super().__init__()
        self.mix = EncoderAttention(shape, options)
        mixed, rows = shape.num_heads * shape.head_dim, {"Wo": config.hidden_size}
        bias, shards = config.output_bias, shape.output_shards
        self.output = make_linear(mixed, rows, bias, options, shards=shards)

    def forward(self, x: Tensor, batch: ForwardBatch, cos_sin: Tensor | None) -> Tensor:
        return self.output(self.mix(x, batch, cos_sin))  # type: ignore[no-any-return]


class _MLP(Layer):
    def __init__(self, hidden: int, config: ModelConfig, options: LayerOptions) -> None:
        super().__init__()
        inner = Shard.even(config.intermediate_size, options.tensor_parallel, "intermediate_size")
        rows, bias = {"Wi": 2 * inner.size}, config.mlp_bias
        shards = LinearShards({"Wi": concatenated([inner, inner])})
        self.up = make_linear(hidden, rows, bias, options, shards=shards)
        rows, shards = {"Wo": hidden}, LinearShards(columns=inner)
        self.down = make_linear(inner.size, rows, bias, options, shards=shards)
        self.activation = GatedActivation(config.hidden_act)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))  # type: ignore[no-any-return]


def _norm(config: ModelConfig, options: LayerOptions) -> LayerNorm:
    assert config.encoder is not None
    bias = config.encoder.norm_bias
    return residual_layer_norm(config.hidden_size, config.rms_norm_eps, options, bias)
