# SPDX-License-Identifier: Apache-2.0
"""A layer of Gemma 2 to 4: norms before and after attention, and before and after feed-forward."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from rtp_llm.attention import Backend, ForwardBatch
from rtp_llm.layers import GatedMLP, Layer, LayerOptions, Mixer, MixerShape, RMSNorm
from rtp_llm.models.config import ModelConfig
from rtp_llm.models.decoder_layer import make_norm


class AloneMixer(Protocol):
    """Attention whose result is not added to the residual."""

    def alone(
        self,
        norm: RMSNorm,
        residual: Tensor,
        pending: Tensor | None,
        cos_sin: Tensor | None,
        batch: ForwardBatch,
    ) -> Tensor:
        """Attention of norm(residual + pending) [T, hidden]."""


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
        self.input_layernorm = make_norm(config, options)
        self.self_attn = mixer.make(index, backend, options.inside("self_attn"))
        self.post_attention_layernorm = make_norm(config, options)
        self.pre_feedforward_layernorm = make_norm(config, options)
        hidden, inner = config.hidden_size, config.intermediate_size
        inside = options.inside("mlp")
        self.mlp = GatedMLP(hidden, inner, config.hidden_act, config.mlp_bias, inside)
        self.post_feedforward_layernorm = make_norm(config, options)
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
        mixed = mixer.alone(self.input_layernorm, residual, pending, cos_sin, batch)
        mixed = self.post_attention_layernorm(self._ranks.all_reduce(mixed))
        added = self._feed_forward(residual, mixed)
        return self.post_feedforward_layernorm(added)  # type: ignore[no-any-return]

    def _feed_forward(self, residual: Tensor, mixed: Tensor) -> Tensor:
        """Add `mixed` to `residual` in place, then compute what the last norm takes."""
        added = self.mlp.alone(self.pre_feedforward_layernorm, residual, mixed)
        return self._ranks.all_reduce(added)
