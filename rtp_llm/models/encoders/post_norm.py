# SPDX-License-Identifier: Apache-2.0
"""Encoders whose norms come after the residual: BERT and its relatives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from rtp_llm import ops
from rtp_llm.attention import ForwardBatch
from rtp_llm.attention.model_inputs import token_types
from rtp_llm.layers import Layer, LayerOptions, Rotary, WeightTarget, make_linear, weight_targets
from rtp_llm.layers.activation import GatedActivation
from rtp_llm.layers.encoder_attention import EncoderAttention, EncoderAttentionShape
from rtp_llm.layers.layer_norm import LayerNorm, residual_layer_norm
from rtp_llm.layers.position_bias import PositionBias
from rtp_llm.layers.weights.interleaved import Interleaved
from rtp_llm.layers.weights.shard import Shard
from rtp_llm.layers.weights.shard_targets import LinearShards
from rtp_llm.models.config import ModelConfig

_WORDS, _POSITIONS, _TYPES = "word_embeddings", "position_embeddings", "token_type_embeddings"


@dataclass(frozen=True)
class PostNormNames:
    """Names in the checkpoint: of the layers, of parts of a layer, and of the embeddings.

    `gated`: `up` holds the rows of the multiplied half and then those of the gate.
    """

    layers: str = "encoder.layer"
    attention_output: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    up: str = "intermediate.dense"
    down: str = "output.dense"
    norm: str = "output.LayerNorm"
    gated: bool = False


class Embeddings(Layer):
    """The norm of the sum of a token's embedding, its position's and its type's.

    Tables in a stored format become floats while they load.
    """

    position: nn.Parameter | None
    kind: nn.Parameter | None

    def __init__(self, config: ModelConfig, options: LayerOptions) -> None:
        super().__init__()
        encoder, hidden = config.encoder, config.hidden_size
        assert encoder is not None
        self.word = options.parameter(config.vocab_size, hidden)
        self.position = self.kind = None
        if encoder.position_rows:
            self.position = options.parameter(encoder.position_rows, hidden)
        if encoder.type_rows:
            self.kind = options.parameter(encoder.type_rows, hidden)
        self.norm = LayerNorm(hidden, config.rms_norm_eps, options)
        self._first = encoder.first_position
        self._tables = {
            _WORDS: (self.word, options.format_of(_WORDS)),
            _POSITIONS: (self.position, options.format_of(_POSITIONS)),
            _TYPES: (self.kind, options.format_of(_TYPES)),
        }

    def forward(self, batch: ForwardBatch) -> Tensor:
        positions = None
        if self.position is not None:
            positions = batch.positions + self._first if self._first else batch.positions
        types = None if batch.second_texts is None else token_types(batch)
        norm, tables = self.norm, (self.word, self.position, self.kind)
        return ops.bert_embedding(
            batch.token_ids, positions, types, *tables, norm.weight, norm.bias, norm.eps
        )

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        for name, (table, stored) in self._tables.items():
            if table is not None:
                for suffix, target in stored.float_targets(table.detach()):
                    yield f"{path}{name}.{suffix}", target
        yield from self.norm.checkpoint_targets(f"{path}LayerNorm.")


class PostNormLayer(Layer):
    """x = norm(x + attention(x)), then x = norm(x + feed_forward(x))."""

    def __init__(
        self,
        config: ModelConfig,
        shape: EncoderAttentionShape,
        names: PostNormNames,
        options: LayerOptions,
    ) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.names = names
        self.attention = EncoderAttention(shape, options)
        mixed = shape.num_heads * shape.head_dim
        rows, bias, shards = (
            {names.attention_output: hidden},
            config.output_bias,
            shape.output_shards,
        )
        self.attention_output = make_linear(mixed, rows, bias, options, shards=shards)
        self.attention_norm = residual_layer_norm(hidden, eps, options)
        inner = Shard.even(config.intermediate_size, options.tensor_parallel, "intermediate_size")
        rows, stored = {names.up: inner.size}, []
        self._gate: GatedActivation | None = None
        if names.gated:
            rows = {"gate": inner.size, "up": inner.size}
            stored = [Interleaved(names.up, ("up", "gate"), 1)]
            self._gate = GatedActivation(config.hidden_act)
        shards = LinearShards(dict.fromkeys(rows, inner), concatenated=True)
        self.up = make_linear(hidden, rows, config.mlp_bias, options, stored, shards)
        rows, shards = {names.down: hidden}, LinearShards(columns=inner)
        self.down = make_linear(inner.size, rows, True, options, shards=shards)
        self.norm = residual_layer_norm(hidden, eps, options)

    def forward(
        self, x: Tensor, batch: ForwardBatch, cos_sin: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        mixed = self.attention(x, batch, cos_sin, bias)
        x = self.attention_norm.add(self.attention_output(mixed), x)
        wide = self.up.gelu(x) if self._gate is None else self._gate(self.up(x))
        return self.norm.add(self.down(wide), x)

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        yield from self.attention.checkpoint_targets(f"{path}attention.")
        for linear in (self.attention_output, self.up, self.down):
            yield from linear.checkpoint_targets(f"{path}linear.")
        yield from self.attention_norm.checkpoint_targets(f"{path}{self.names.attention_norm}.")
        yield from self.norm.checkpoint_targets(f"{path}{self.names.norm}.")


class PostNormEncoder(Layer):
    """Embeddings and layers; positions are learned, relative, or rotate queries and keys."""

    position_bias: PositionBias | None

    def __init__(
        self,
        config: ModelConfig,
        shapes: tuple[EncoderAttentionShape, ...],
        names: PostNormNames,
        options: LayerOptions,
        num_positions: int,
    ) -> None:
        super().__init__()
        encoder = config.encoder
        assert encoder is not None
        self.names = names
        self.embeddings = Embeddings(config, options.inside("embeddings"))
        self.rotary = Rotary(config.rope, num_positions, options.device)
        self.position_bias = None
        if encoder.position_buckets:
            sizes = encoder.position_buckets, config.num_heads, num_positions
            self.position_bias = PositionBias(*sizes, options)
        self.layers = nn.ModuleList(
            PostNormLayer(config, shape, names, options.inside(f"{names.layers}.{index}"))
            for index, shape in enumerate(shapes)
        )

    def forward(self, batch: ForwardBatch) -> Tensor:
        x = self.embeddings(batch)
        bias = None
        if self.position_bias is not None:
            bias = self.position_bias(batch.max_seqlen_q)
        for layer in self.layers:
            x = layer(x, batch, self.rotary.cos_sin, bias)
        return x  # type: ignore[no-any-return]

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        yield from self.embeddings.checkpoint_targets(f"{path}embeddings.")
        if self.position_bias is not None:
            bias = self.position_bias
            yield from bias.checkpoint_targets(f"{path}encoder.relative_attention_bias.")
        for index, layer in enumerate(self.layers):
            yield from weight_targets(layer, f"{path}{self.names.layers}.{index}.")
