# SPDX-License-Identifier: Apache-2.0
"""The multi-token prediction layer: it predicts one additional token, which serves as a draft."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rtp_llm.attention import Backend, ForwardBatch
from rtp_llm.layers import LayerOptions, Mixer, MixerShape
from rtp_llm.layers.linear.factory import make_linear
from rtp_llm.models.config import ModelConfig
from rtp_llm.models.decoder_layer import DecoderLayer, make_norm
from rtp_llm.models.drafts.draft_head import DraftHead, TargetParts, of_rows


class MultiTokenPredictor(DraftHead):
    """Predicts token i + 2 from the hidden state of token i and the embedding of token i + 1.

    Its states are hidden states after a final norm, from which the model's head computes logits.

    Sources: DeepSeek-V3 (2024), section 2.2; Qwen3-Next and Qwen3.5, whose weight names it uses.
    """

    def __init__(
        self,
        index: int,
        config: ModelConfig,
        mixer: MixerShape,
        backend: Backend[Any] | None,
        options: LayerOptions,
        target: TargetParts,
    ) -> None:
        """Create the head; its single layer is decoder layer ``index``."""
        super().__init__()
        self.width, self._target = config.hidden_size, target
        options = options.inside("mtp")
        hidden = config.hidden_size
        self.pre_fc_norm_embedding = make_norm(config, options)
        self.pre_fc_norm_hidden = make_norm(config, options)
        self.fc = make_linear(2 * hidden, {"fc": hidden}, False, options)
        inside = options.inside("layers.0")
        self.layers = nn.ModuleList([DecoderLayer(index, config, mixer, backend, inside)])
        self.norm = make_norm(config, options)

    @property
    def mixer(self) -> Mixer:
        return self._layer.mixer

    def condition(self, hidden: Tensor) -> Tensor:
        return hidden

    def forward(
        self, ids: Tensor, states: Tensor, batch: ForwardBatch, rows: Tensor | None = None
    ) -> Tensor:
        embedded = self._target.embed(ids)
        both = (self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(states))
        residual: Tensor = self.fc(torch.cat(both, 1))
        pending = self._layer.mix(None, residual, self._target.cos_sin(), batch)
        pending, residual = of_rows(rows, pending, residual)
        return self.norm.after(self._layer.feed_forward(pending, residual), residual)

    def logits(self, states: Tensor) -> Tensor:
        return self._target.logits(states)

    @property
    def _layer(self) -> DecoderLayer:
        (layer,) = self.layers
        assert isinstance(layer, DecoderLayer)
        return layer
