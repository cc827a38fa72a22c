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
    GatedMLP,
    Layer,
    LayerOptions,
    LogitsHead,
    Mixer,
    MixerShape,
    MoeBlock,
    RMSNorm,
    Rotary,
    TiedLogitsHead,
)
from rtp_llm.models.causal_lm import CausalLM, ModelOptions
from rtp_llm.models.config import ModelConfig

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


class DecoderLayer(Layer):
    """Attention and MLP, each after a norm that first adds the previous result to the residual."""

    def __init__(
        self,
        index: int,
        config: ModelConfig,
        mixer: MixerShape,
        backend: Backend[Any] | None,
        options: LayerOptions,
    ) -> None:
        super().__init__()
        options = options.inside(f"layers.{index}")
        self.input_layernorm = make_norm(config, options)
        self._mixer_name = name = mixer.checkpoint_name
        self.add_module(name, mixer.make(index, backend, options.inside(name)))
        self.post_attention_layernorm = make_norm(config, options)
        self.mlp = make_feed_forward(index, config, options)

    @property
    def mixer(self) -> Mixer:
        """Its attention, MLA, linear attention, ..., under its name in checkpoints."""
        return getattr(self, self._mixer_name)  # type: ignore[no-any-return]

    def forward(
        self, pending: Tensor | None, residual: Tensor, cos_sin: Tensor | None, batch: ForwardBatch
    ) -> Tensor | None:
        """pending: what has to be added to `residual` [T, hidden] first (None: nothing) -> the same
        for the layer above."""
        pending = self.mixer(self.input_layernorm, residual, pending, cos_sin, batch)
        added: Tensor | None = self.mlp(self.post_attention_layernorm, residual, pending)
        return added


def make_norm(config: ModelConfig, options: LayerOptions) -> RMSNorm:
    """A norm of hidden states."""
    return RMSNorm(config.hidden_size, config.rms_norm_eps, options, config.norm_offset)


def make_feed_forward(index: int, config: ModelConfig, options: LayerOptions) -> Layer:
    """The dense layer or the mixture of experts of decoder layer `index`."""
    if config.moe is not None and config.moe_layers[index]:
        return MoeBlock(index, config.moe, options.inside(config.moe.names.block))
    hidden, inner = config.hidden_size, config.intermediate_size
    return GatedMLP(hidden, inner, config.hidden_act, config.mlp_bias, options.inside("mlp"))


class Decoder(Layer):
    """Embedding, layers and the last norm."""

    def __init__(
        self,
        config: ModelConfig,
        options: ModelOptions,
        layers: LayerOptions,
        mixers: Sequence[MixerShape],
        backends: GroupBackends,
    ) -> None:
        """``mixers`` of the layers, ``backends`` of the cache groups that they form."""
        super().__init__()
        layers = layers.inside("model")
        self.backends = backends
        groups = CacheGroups.of([mixer.cache_spec(options.cache_dtypes) for mixer in mixers])
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, layers)
        self.layers = nn.ModuleList(
            DecoderLayer(index, config, mixer, backends[group], layers)
            for index, (mixer, group) in enumerate(zip(mixers, groups.layer_group, strict=True))
        )
        self.norm = make_norm(config, layers)
        self.rotary = Rotary(config.rope, options.num_positions, options.device)

    def forward(self, batch: ForwardBatch) -> Tensor:
        batch = self.backends.prepare(batch)
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
        layers = options.layer_options()
        backends = GroupBackends(self.backend_configs(config, options))
        self.model = Decoder(config, options, layers, self.mixers(config), backends)
        self.lm_head = self._make_head(config, layers)

    @classmethod
    def mixers(cls, config: ModelConfig) -> tuple[MixerShape, ...]:
        if config.mla is not None:
            return (config.mla,) * config.num_layers
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
        return tuple(
            config.delta_net if linear and config.delta_net else replace(attention, window=window)
            for linear, window in zip(config.linear_layers, config.layer_windows, strict=True)
        )

    def cache_groups(self) -> CacheGroups:
        layers = (layer for layer in self.model.layers if isinstance(layer, DecoderLayer))
        return CacheGroups.of([layer.mixer.cache_spec() for layer in layers])

    def context_bytes(self, keys: int) -> int:
        return self.model.backends.context_bytes(keys)

    def forward(self, batch: ForwardBatch) -> Tensor:
        hidden: Tensor = self.model(batch)
        return hidden

    def warm_up(self, kv_cache: Sequence[Tensor]) -> None:
        self.model.backends.warm_up(kv_cache, self.cache_groups().layer_group)
        for layer in self.model.layers:
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
