# SPDX-License-Identifier: Apache-2.0
"""A layer of Gemma 3: norms before and after attention, and before and after feed-forward."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from rtp_llm.attention import ForwardBatch
from rtp_llm.layers import GatedMLP, Layer, LayerOptions, RMSNorm
from rtp_llm.models.config import ModelConfig


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


class Gemma3Layer(Layer):
    """The results of attention and feed-forward are normalised before they are added; ranks sum
    their parts of them first."""

    def __init__(self, config: ModelConfig, mixer: Layer, options: LayerOptions) -> None:
        """`mixer` is an AloneMixer."""
        super().__init__()
        self.input_layernorm = gemma_norm(config, options)
        self.self_attn = mixer
        self.post_attention_layernorm = gemma_norm(config, options)
        self.pre_feedforward_layernorm = gemma_norm(config, options)
        hidden, inner = config.hidden_size, config.intermediate_size
        self.mlp = GatedMLP(hidden, inner, config.hidden_act, False, options.inside("mlp"))
        self.post_feedforward_layernorm = gemma_norm(config, options)
        self._ranks = options.tensor_parallel

    def forward(
        self, pending: Tensor | None, residual: Tensor, cos_sin: Tensor | None, batch: ForwardBatch
    ) -> Tensor:
        """Add `pending` (None: nothing) to `residual` [T, hidden] in place, then apply the layer.

        Returns the value that the next layer has to add.
        """
        mixer: AloneMixer = self.self_attn  # type: ignore[assignment]
        mixed = mixer.alone(self.input_layernorm, residual, pending, cos_sin, batch)
        mixed = self.post_attention_layernorm(self._ranks.all_reduce(mixed))
        added = self.mlp.alone(self.pre_feedforward_layernorm, residual, mixed)
        added = self._ranks.all_reduce(added)
        return self.post_feedforward_layernorm(added)  # type: ignore[no-any-return]


def gemma_norm(config: ModelConfig, options: LayerOptions) -> RMSNorm:
    """A norm of weights 1 + w."""
    return RMSNorm(config.hidden_size, config.rms_norm_eps, options, 1.0)
