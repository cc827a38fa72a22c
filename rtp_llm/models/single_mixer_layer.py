# SPDX-License-Identifier: Apache-2.0
"""A layer that is one mixer: attention, Mamba-2 or a feed-forward part, after a norm."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rtp_llm.attention import Backend, ForwardBatch
from rtp_llm.layers import Layer, LayerOptions, MixerShape
from rtp_llm.models.config import ModelConfig
from rtp_llm.models.decoder_layer import make_norm


class SingleMixerLayer(Layer):
    """Adds the previous layer's result to the residual, and applies its mixer to the norm of it.

    See DecoderLayer for the arguments; here a layer needs one all-reduce.
    """

    def __init__(
        self,
        index: int,
        config: ModelConfig,
        mixer: MixerShape,
        backend: Backend[Any] | None,
        options: LayerOptions,
    ) -> None:
        super().__init__()
        self.norm = make_norm(config, options)
        self.mixer = mixer.make(index, backend, options.inside("mixer"))

    def forward(
        self, pending: Tensor | None, residual: Tensor, cos_sin: Tensor | None, batch: ForwardBatch
    ) -> Tensor | None:
        """Add `pending` (None: nothing) to `residual` [T, hidden], then apply the layer.

        Returns the value that the next layer has to add, or None.
        """
        mixed: Tensor | None = self.mixer(self.norm, residual, pending, cos_sin, batch)
        return mixed
