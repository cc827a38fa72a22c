# SPDX-License-Identifier: Apache-2.0
"""A layer with norms after attention and feed-forward, and perhaps before them."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any, Protocol

from torch import Tensor

from rtp_llm.attention import Backend, ForwardBatch
from rtp_llm.layers import Layer, LayerOptions, Mixer, MixerShape, RMSNorm
from rtp_llm.models.config import ModelConfig
from rtp_llm.models.decoder_layer import make_mlp, make_norm


class AloneMixer(Protocol):
    """Attention whose result is not added to the residual."""

    def alone(
        self,
        norm: RMSNorm | None,
        residual: Tensor,
        pending: Tensor | None,
        cos_sin: Tensor | None,
        batch: ForwardBatch,
    ) -> Tensor:
        """Attention of norm(residual + pending) [T, hidden]; None: of the sum itself."""


class OutputNormLayer(Layer):
    """The results of attention and feed-forward are normalised before they are added; ranks sum
    their parts of them first."""

    def __init__(
        self,
        index: int,
        config: ModelConfig,
        mixer: MixerShape,
        backend: Backend[Any] | None,
        options: LayerOptions,
    ) -> None:
        """``mixer`` makes an AloneMixer; see DecoderLayer."""
        super().__init__()
        self._slots = slots = config.norms
        for name in filter(None, astuple(slots)):
            self.add_module(name, make_norm(config, options))
        self.self_attn = mixer.make(index, backend, options.inside("self_attn"))
        self.mlp = make_mlp(config, options)
        self._ranks = options.tensor_parallel

    @property
    def mixer(self) -> Mixer:
        """The layer's attention."""
        return self.self_attn

    def forward(
        self, pending: Tensor | None, residual: Tensor, cos_sin: Tensor | None, batch: ForwardBatch
    ) -> Tensor | None:
        """Add `pending` (None: nothing) to `residual` [T, hidden] in place, then apply the layer.

        Returns the value that the next layer has to add, or None.
        """
        return self._added(pending, residual, cos_sin, batch)

    def _added(
        self, pending: Tensor | None, residual: Tensor, cos_sin: Tensor | None, batch: ForwardBatch
    ) -> Tensor:
        """The norm of the feed-forward part's result, with all before it added to `residual`."""
        mixer: AloneMixer = self.self_attn  # type: ignore[assignment]
        norm = self._norm(self._slots.attention_input)
        mixed = mixer.alone(norm, residual, pending, cos_sin, batch)
        after = getattr(self, self._slots.attention_output)
        mixed = after(self._ranks.all_reduce(mixed))
        added = self._feed_forward(residual, mixed)
        return getattr(self, self._slots.mlp_output)(added)  # type: ignore[no-any-return]

    def _feed_forward(self, residual: Tensor, mixed: Tensor) -> Tensor:
        """Add `mixed` to `residual` in place, then compute what the last norm takes."""
        added = self.mlp.alone(self._norm(self._slots.mlp_input), residual, mixed)
        return self._ranks.all_reduce(added)

    def _norm(self, slot: str) -> RMSNorm | None:
        return getattr(self, slot) if slot else None
