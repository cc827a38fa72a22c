"""The pre-norm decoder that Llama, Mistral, Qwen2 and Qwen3 share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor, nn

from rtp_llm.attention import Backend, CacheGroups, ForwardBatch, GroupBackends
from rtp_llm.layers import (
    AttentionShape,
    Embedding,
    Layer,
    LayerOptions,
    LogitsHead,
    MixerShape,
    MoeBlock,
    Rotary,
    TiedLogitsHead,
)
from rtp_llm.models.causal_lm import CausalLM, ModelOptions
from rtp_llm.models.config import ModelConfig
from rtp_llm.models.decoder_layer import DecoderLayer, make_norm
from rtp_llm.models.mtp import MultiTokenPredictor

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


class Decoder(Layer):
    """Embedding, layers and the last norm."""

    def __init__(
        self,
        config: ModelConfig,
        options: ModelOptions,
        layers: LayerOptions,
        mixers: Sequence[MixerShape],
        backends: Sequence[Backend[Any] | None],
    ) -> None:
        """``mixers`` of the layers, ``backends`` of each."""
        super().__init__()
        layers = layers.inside("model")
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, layers)
        self.layers = nn.ModuleList(
            DecoderLayer(index, config, mixer, backend, layers.inside(f"layers.{index}"))
            for index, (mixer, backend) in enumerate(zip(mixers, backends, strict=True))
        )
        self.norm = make_norm(config, layers)
        self.rotary = Rotary(config.rope, options.num_positions, options.device)

    def forward(self, batch: ForwardBatch) -> Tensor:
        residual: Tensor = self.embed_tokens(batch.token_ids)
        cos_sin = self.rotary.cos_sin
        pending: Tensor | None = None
        for layer in self.layers:
            pending = layer(pending, residual, cos_sin, batch)
        return self.norm.after(pending, residual)


class DecoderForCausalLM(CausalLM):
    """A Decoder and its logits; an architecture is a subclass that says how it differs."""

    IGNORED_WEIGHTS: ClassVar[tuple[str, ...]] = ("rotary_emb.inv_freq",)

    def __init__(self, config: ModelConfig, options: ModelOptions) -> None:
        super().__init__()
        self.config = config
        layers, mixers = options.layer_options(), self.mixers(config)
        self._backends = GroupBackends(self.backend_configs(config, options))
        groups = self.groups_of(config, options.cache_dtypes).layer_group
        backends = [self._backends[group] for group in groups]
        last = config.num_layers
        self.model = Decoder(config, options, layers, mixers[:last], backends[:last])
        self.lm_head = self._make_head(config, layers)
        self.mtp: MultiTokenPredictor | None = None
        if config.draft_layers:
            self.mtp = MultiTokenPredictor(last, config, mixers[last], backends[last], layers)

    @classmethod
    def mixers(cls, config: ModelConfig) -> tuple[MixerShape, ...]:
        if config.mla is not None:
            return (config.mla,) * (config.num_layers + config.draft_layers)
        attention = AttentionShape(
            hidden_size=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            qkv_bias=config.qkv_bias,
            output_bias=config.output_bias,
            norm_eps=config.rms_norm_eps if config.qk_norm else None,
            norm_offset=config.norm_offset,
            output_gate=config.output_gate,
        )
        layers: tuple[MixerShape, ...] = tuple(
            config.delta_net if linear and config.delta_net else replace(attention, window=window)
            for linear, window in zip(config.linear_layers, config.layer_windows, strict=True)
        )
        return layers + (attention,) * config.draft_layers

    def _layers(self) -> list[DecoderLayer]:
        """All that have a cache, in its order."""
        layers = [*self.model.layers, *([] if self.mtp is None else self.mtp.layers)]
        return [layer for layer in layers if isinstance(layer, DecoderLayer)]

    def cache_groups(self) -> CacheGroups:
        return CacheGroups.of([layer.mixer.cache_spec() for layer in self._layers()])

    def context_bytes(self, keys: int) -> int:
        return self._backends.context_bytes(keys)

    def forward(self, batch: ForwardBatch) -> Tensor:
        hidden: Tensor = self.model(self._backends.prepare(batch))
        return hidden

    def predict_further(self, batch: ForwardBatch, hidden: Tensor) -> Tensor:
        assert self.mtp is not None, "made without its further layers"
        batch = self._backends.prepare(batch)
        embedded = self.model.embed_tokens(batch.token_ids)
        further: Tensor = self.mtp(embedded, hidden, self.model.rotary.cos_sin, batch)
        return further

    def warm_up(self, kv_cache: Sequence[Tensor]) -> None:
        self._backends.warm_up(kv_cache, self.cache_groups().layer_group)
        for layer in self._layers():
            if isinstance(layer.mlp, MoeBlock):
                layer.mlp.executor.warm_up()

    def compute_logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(hidden)
        return logits

    def _make_head(self, config: ModelConfig, layers: LayerOptions) -> nn.Module:
        tied = config.tie_word_embeddings
        if layers.quantization == "fp8":  # which leaves logits alone, as FP8 checkpoints do
            layers = layers.unquantized()
        if tied and layers.quantization == "none":
            return TiedLogitsHead(self.model.embed_tokens)
        # Quantised, a tied head is a copy of its own: the embedding's rows stay as they are.
        name = EMBEDDING if tied else HEAD
        return LogitsHead(config.vocab_size, config.hidden_size, layers, name)
