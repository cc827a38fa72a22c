# SPDX-License-Identifier: Apache-2.0
"""The decoder of Gemma 4, which may give each token an embedding for every layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rtp_llm.attention import Backend, ForwardBatch
from rtp_llm.layers import Layer, LayerOptions, MixerShape, RMSNorm, make_embedding, make_linear
from rtp_llm.models.causal_lm import ModelOptions
from rtp_llm.models.config import ModelConfig
from rtp_llm.models.decoder import Decoder
from rtp_llm.models.gemma4.layer import Gemma4Layer

_TABLE, _PROJECTION = "embed_tokens_per_layer", "per_layer_model_projection"


class Gemma4Decoder(Decoder):
    """A Decoder whose layers add nothing later: the residual is complete after each."""

    def __init__(
        self,
        config: ModelConfig,
        options: ModelOptions,
        layers: LayerOptions,
        mixers: Sequence[MixerShape],
        backends: Sequence[Backend[Any] | None],
        stage: range,
    ) -> None:
        super().__init__(config, options, layers, mixers, backends, stage)
        own, layers = config.gemma4, layers.inside("model")
        assert own is not None
        self._windows = config.layer_windows
        self._sizes = config.num_layers, own.per_layer_size
        if not own.per_layer_size:
            return
        width = config.num_layers * own.per_layer_size
        self.embed_tokens_per_layer = make_embedding(
            own.per_layer_vocabulary, width, layers, _TABLE
        )
        parts = {_PROJECTION: width}
        self.per_layer_model_projection = make_linear(config.hidden_size, parts, False, layers)
        eps = config.rms_norm_eps
        self.per_layer_projection_norm = RMSNorm(own.per_layer_size, eps, layers)
        self._table_scale = float(torch.tensor(own.per_layer_size**0.5, dtype=options.dtype))

    @classmethod
    def _layer_kind(cls, config: ModelConfig) -> Callable[..., Layer]:
        return Gemma4Layer

    def forward(self, batch: ForwardBatch) -> Tensor:
        residual = self._input(batch)
        full = self.rotary.cos_sin
        near = full if self.local_rotary is None else self.local_rotary.cos_sin
        embedded = self._embedded(batch.token_ids, residual) if self._sizes[1] else None
        for index, layer, _ in self._own:
            of_layer = None if embedded is None else embedded[:, index]
            layer(None, residual, near if self._windows[index] else full, batch, of_layer)
        if self.norm is not None:
            residual = self.norm(residual)
        return residual

    def _embedded(self, ids: Tensor, embedding: Tensor) -> Tensor:
        """The embeddings of tokens for every layer [T, L, P]: half of each is looked up by the
        token's id, half is a projection of its embedding [T, hidden]."""
        table: Tensor = self.embed_tokens_per_layer(ids)
        projected = self.per_layer_model_projection(embedding).mul_(embedding.shape[1] ** -0.5)
        # One norm for each layer's part.
        normed: Tensor = self.per_layer_projection_norm(projected.view(-1, self._sizes[1]))
        mixed = normed.view_as(table).add_(table, alpha=self._table_scale).mul_(0.5**0.5)
        return mixed.view(len(ids), *self._sizes)
