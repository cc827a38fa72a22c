# SPDX-License-Identifier: Apache-2.0
"""The pre-norm decoder that Llama, Mistral, Qwen2 and Qwen3 share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rtp_llm.attention import Backend, CacheGroups, ForwardBatch, GroupBackends
from rtp_llm.attention.model_inputs import InputNeeds, ModelInputs
from rtp_llm.distributed.tensor_parallel import SINGLE
from rtp_llm.layers import (
    AttentionShape,
    Embedding,
    IndexerShape,
    Layer,
    LayerOptions,
    LogitsHead,
    MixerShape,
    MlaShape,
    MoeBlock,
    Mrope,
    RMSNorm,
    Rotary,
    SharedKvShape,
    TiedLogitsHead,
    WideNormShape,
    gather_columns,
    make_embedding,
)
from rtp_llm.models.causal_lm import Architecture, ModelOptions
from rtp_llm.models.config import Features, ModelConfig, make_config
from rtp_llm.models.decoder_layer import DecoderLayer, make_norm
from rtp_llm.models.drafts.draft_head import DraftHead, TargetParts
from rtp_llm.models.drafts.eagle3 import Eagle3Head
from rtp_llm.models.drafts.mtp import MultiTokenPredictor
from rtp_llm.models.mla_mixers import mla_mixers
from rtp_llm.models.output_norm_layer import OutputNormLayer
from rtp_llm.models.raw_config import RawConfig

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


class _Rotates(Enum):
    """Which rotary table a layer has: that of all layers, of those with a window, or none."""

    ALL = auto()
    NEAR = auto()
    NOT = auto()


class Decoder(Layer):
    """Embedding, layers and final norm of a decoder, or those of one pipeline stage."""

    def __init__(
        self,
        config: ModelConfig,
        options: ModelOptions,
        layers: LayerOptions,
        mixers: Sequence[MixerShape],
        backends: Sequence[Backend[Any] | None],
        stage: range,
    ) -> None:
        """Create the layers of ``stage``; ``mixers`` and ``backends`` are given for all layers."""
        super().__init__()
        layers = layers.inside("model")
        self.embed_tokens: Embedding | None = None
        if stage.start == 0:
            self.embed_tokens = make_embedding(config.vocab_size, config.hidden_size, layers)
        self._scale = float(torch.tensor(config.embedding_scale, dtype=options.dtype))
        make = self._layer_kind(config)
        self.layers = nn.ModuleList(
            make(index, config, mixer, backend, layers.inside(f"layers.{index}"))
            if index in stage
            else Layer()  # on another stage; a placeholder that keeps names and indices
            for index, (mixer, backend) in enumerate(zip(mixers, backends, strict=True))
        )
        is_last = stage.stop == config.num_layers
        self.norm: RMSNorm | None = make_norm(config, layers) if is_last else None
        self.rotary = Rotary(config.rope, options.num_positions, options.device)
        self.mrope = None if config.mrope is None else Mrope(config.mrope, options.device)
        self.local_rotary: Rotary | None = None
        if config.local_rope is not None:
            self.local_rotary = Rotary(config.local_rope, options.num_positions, options.device)
        self._own = [(i, self.layers[i], _rotation_of(config, i)) for i in stage]
        # What a layer leaves to be added is a partial sum, unless the layer has normalised it.
        self._ranks = SINGLE if config.norms.has_outputs else options.tensor_parallel
        self._captures: tuple[int, ...] = ()
        self.captured: Tensor | None = None

    @classmethod
    def _layer_kind(cls, config: ModelConfig) -> Callable[..., Layer]:
        """What makes a layer; see DecoderLayer."""
        return OutputNormLayer if config.norms.has_outputs else DecoderLayer

    def forward(self, batch: ForwardBatch) -> Tensor:
        residual = self._input(batch)
        cos_sin = self.rotary.cos_sin
        if self.mrope is not None:
            cos_sin, batch = self.mrope(cos_sin, batch)
        local = cos_sin if self.local_rotary is None else self.local_rotary.cos_sin
        tables = {_Rotates.ALL: cos_sin, _Rotates.NEAR: local, _Rotates.NOT: None}
        pending: Tensor | None = None
        for index, layer, rotates in self._own:
            if index in self._captures:
                pending = self._capture(index, residual, pending)
            pending = layer(pending, residual, tables[rotates], batch)
        if self.norm is not None:
            return self.norm.after(pending, residual)
        if pending is not None:  # one tensor travels to the next stage, not two
            residual.add_(self._ranks.all_reduce(pending))
        return residual

    def _input(self, batch: ForwardBatch) -> Tensor:
        if self.embed_tokens is not None:
            embedded: Tensor = self.embed_tokens(batch.token_ids)
            if self._scale != 1.0:
                embedded.mul_(self._scale)
            return embedded if batch.embeddings is None else batch.embeddings.place(embedded)
        assert batch.hidden is not None, "the stage before gives it"
        return batch.hidden

    def capture(self, layers: Sequence[int]) -> None:
        """Keep the inputs of these layers in each step, in ``captured`` [T, layers x hidden]."""
        self._captures = tuple(layers)

    def _capture(self, index: int, residual: Tensor, pending: Tensor | None) -> Tensor | None:
        """Store the input of layer `index`; returns what still has to be added to the residual.

        Graphs write to the memory that they were captured with, so it must not move afterwards. It
        does not, since trial steps run before the graphs and no step is larger.
        """
        if pending is not None and self._ranks.size > 1:
            residual.add_(self._ranks.all_reduce(pending))
            pending = None
        tokens, hidden = residual.shape
        if self.captured is None or len(self.captured) < tokens:
            self.captured = residual.new_empty(tokens, len(self._captures) * hidden)
        for place, captured in enumerate(self._captures):
            if captured == index:
                to = self.captured[:tokens, place * hidden : (place + 1) * hidden]
                to.copy_(residual)
                if pending is not None:
                    to.add_(pending)
        return pending


def _rotation_of(config: ModelConfig, index: int) -> _Rotates:
    if index in config.no_rope_layers:
        return _Rotates.NOT
    return _Rotates.NEAR if config.layer_windows[index] else _Rotates.ALL


class DecoderForCausalLM(Architecture):
    """A Decoder with a logits head; architectures are subclasses that override the differences."""

    IGNORED_WEIGHTS: ClassVar[tuple[str, ...]] = ("rotary_emb.inv_freq",)
    DECODER: ClassVar[type[Decoder]] = Decoder

    def __init__(self, config: ModelConfig, options: ModelOptions) -> None:
        super().__init__()
        self.config = config
        self._ranks = ranks = options.tensor_parallel
        self._options, self._stage = options, options.stage or range(config.num_layers)
        self.inputs = ModelInputs(self._input_needs(config))
        self._is_fed = self.inputs.needs.any
        layers, mixers = options.layer_options(self.inputs), self.local_mixers(config, ranks)
        self._backends = GroupBackends(self.backend_configs(config, options))
        groups = self.groups_of(config, options.cache_dtypes, ranks).layer_group
        backends = [
            self._backends[groups[mixer.source if isinstance(mixer, SharedKvShape) else index]]
            for index, mixer in enumerate(mixers)
        ]
        last = config.num_layers
        self.model = self.DECODER(
            config, options, layers, mixers[:last], backends[:last], self._stage
        )
        if self._stage.start == 0:
            self.lm_head = self._make_head(config, layers)
        self.mtp: MultiTokenPredictor | None = None
        self.eagle3: Eagle3Head | None = None
        if config.has_drafts:
            self._make_drafts(config, options, layers, mixers[last], backends[last])

    @classmethod
    @abstractmethod
    def features(cls, raw: RawConfig) -> Features:
        """Read the architecture's features beyond the common keys of config.json."""

    @classmethod
    def read_config(cls, raw: RawConfig) -> ModelConfig:
        return make_config(raw, cls.features(raw))

    @classmethod
    def mixers(cls, config: ModelConfig) -> tuple[MixerShape, ...]:
        further = () if config.eagle3 is None else (config.eagle3.shape,)
        if config.mla is not None:
            return mla_mixers(config) + further
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
            sinks=config.sinks,
            scale=config.attention_scale,
            soft_cap=config.soft_cap,
            pairs=config.rope_in_pairs,
            fused="qkv_proj" if config.fused_qkv else "",
            query_scaling=config.query_scaling,
        )
        if config.wide_qk_norm:
            attention = WideNormShape(**vars(attention), wide_norm_eps=config.rms_norm_eps)
        layers: tuple[MixerShape, ...] = tuple(
            config.delta_net if linear and config.delta_net else replace(attention, window=window)
            for linear, window in zip(config.linear_layers, config.layer_windows, strict=True)
        )
        return layers + (attention,) * config.draft_layers + further

    @classmethod
    def indexers(cls, config: ModelConfig) -> tuple[IndexerShape, ...]:
        mla = (each for each in cls.mixers(config) if isinstance(each, MlaShape))
        return tuple(each.indexer for each in mla if each.indexer and not each.shares_selection)

    def cache_groups(self) -> CacheGroups:
        if self._options.stage is not None:
            whole = self.groups_of(self.config, self._options.cache_dtypes, self._ranks)
            return replace(whole, here=self._stage)
        layers: Any = self.model.layers
        mixers = [layer.mixer for layer in layers]
        if self.drafts is not None:
            mixers.append(self.drafts.mixer)
        indexers = self.indexers(self.config)
        further = [each.cache_spec(self._options.cache_dtypes) for each in indexers]
        return CacheGroups.of([*(mixer.cache_spec() for mixer in mixers), *further])

    def context_bytes(self, keys: int) -> int:
        return self._backends.context_bytes(keys)

    def forward(self, batch: ForwardBatch) -> Tensor:
        prepared = self._backends.prepare(batch)
        if self._is_fed:
            self.inputs.begin(prepared)
        hidden: Tensor = self.model(prepared)
        return hidden

    def _input_needs(self, config: ModelConfig) -> InputNeeds:
        has_embeddings = config.takes_embeddings and self._stage.start == 0
        return InputNeeds(
            mrope=config.mrope is not None,
            embedding_width=config.hidden_size if has_embeddings else 0,
            embedding_dtype=self._options.dtype,
        )

    @property
    def has_logits(self) -> bool:
        return self._stage.start == 0

    def stage_input(self, tokens: int) -> Tensor | None:
        if self.has_logits:
            return None
        options = self._options
        return torch.zeros(
            tokens, self.config.hidden_size, dtype=options.dtype, device=options.device
        )

    @property
    def drafts(self) -> DraftHead | None:
        return self.mtp or self.eagle3

    def draft_states(self, hidden: Tensor) -> Tensor:
        drafts, captured = self.drafts, self.model.captured
        assert drafts is not None, "made without a draft head"
        return drafts.condition(hidden if captured is None else captured[: len(hidden)])

    def draft(self, batch: ForwardBatch, states: Tensor, rows: Tensor | None = None) -> Tensor:
        drafts = self.drafts
        assert drafts is not None, "made without a draft head"
        batch = self._backends.prepare(batch)
        further: Tensor = drafts(batch.token_ids, states, batch, rows)
        return further

    def warm_up(self, kv_cache: Sequence[Tensor]) -> None:
        self._backends.warm_up(kv_cache, self.cache_groups().layer_group)
        for module in self.modules():
            if isinstance(module, MoeBlock):
                module.warm_up()

    def compute_logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(hidden)
        cap, scale = self.config.logit_cap, self.config.logit_scale
        if scale != 1.0:
            logits.mul_(scale)
        return logits.div_(cap).tanh_().mul_(cap) if cap else logits

    @property
    def logit_columns(self) -> range:
        return range(*self.lm_head.shard.ranges[0])

    def gather_logits(self, logits: Tensor) -> Tensor:
        return gather_columns(logits, self.lm_head.shard, self._ranks)

    def _all_logits(self, hidden: Tensor) -> Tensor:
        return self.gather_logits(self.compute_logits(hidden))

    def _make_drafts(
        self,
        config: ModelConfig,
        options: ModelOptions,
        layers: LayerOptions,
        mixer: MixerShape,
        backend: Backend[Any] | None,
    ) -> None:
        """Create the draft head, under the name of its weights."""
        last = config.num_layers
        layers = layers.of_drafts()
        embed = self.model.embed_tokens
        assert embed is not None, "a model that drafts is on one stage"
        target = TargetParts(
            embed=embed,
            logits=self.compute_logits if self._ranks.size == 1 else self._all_logits,
            cos_sin=lambda: self.model.rotary.cos_sin,
        )
        if config.eagle3 is not None:
            positions = options.num_positions
            head = Eagle3Head(last, config.eagle3, mixer, backend, layers, target, positions)
            self.model.capture(head.captures)
            self.eagle3 = head
        else:
            self.mtp = MultiTokenPredictor(last, config, mixer, backend, layers, target)

    def _make_head(self, config: ModelConfig, layers: LayerOptions) -> LogitsHead | TiedLogitsHead:
        tied = config.tie_word_embeddings
        if layers.quantization == "fp8":  # which leaves logits alone, as FP8 checkpoints do
            layers = layers.unquantized()
        if tied and layers.quantization == "none":
            assert self.model.embed_tokens is not None
            return TiedLogitsHead(self.model.embed_tokens)
        # A quantised tied head is a separate copy: the embedding's rows are not quantised.
        name = EMBEDDING if tied else HEAD
        return LogitsHead(config.vocab_size, config.hidden_size, layers, name)
