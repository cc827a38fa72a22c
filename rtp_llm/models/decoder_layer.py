# SPDX-License-Identifier: Apache-2.0
"""One layer of a pre-norm decoder."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rtp_llm.attention import Backend, ForwardBatch
from rtp_llm.layers import (
    GatedMLP,
    Layer,
    LayerOptions,
    Mixer,
    MixerShape,
    MoeBlock,
    RMSNorm,
    residual_norm,
)
from rtp_llm.models.config import ModelConfig


class DecoderLayer(Layer):
    """Attention and MLP, each after a norm that first adds the previous result to the residual.

    On tensor-parallel ranks these results are partial sums, which the norms reduce (residual_norm):
    two all-reduces per layer.
    ``index`` is the layer's index in the cache; draft layers are numbered after the model's own.
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
        self.input_layernorm = make_norm(config, options)
        self._mixer_name = name = mixer.checkpoint_name
        self.add_module(name, mixer.make(index, backend, options.inside(name)))
        self.post_attention_layernorm = make_norm(config, options)
        self.mlp = make_feed_forward(index, config, options)

    @property
    def mixer(self) -> Mixer:
        """The layer's sequence mixer (attention, MLA, ...), under its name in checkpoints."""
        return getattr(self, self._mixer_name)  # type: ignore[no-any-return]

    def forward(
        self, pending: Tensor | None, residual: Tensor, cos_sin: Tensor | None, batch: ForwardBatch
    ) -> Tensor | None:
        """Add `pending` (None: nothing) to `residual` [T, hidden], then apply the layer.

        Returns the value that the next layer has to add, or None.
        """
        pending = self.mix(pending, residual, cos_sin, batch)
        return self.feed_forward(pending, residual)

    def mix(
        self, pending: Tensor | None, residual: Tensor, cos_sin: Tensor | None, batch: ForwardBatch
    ) -> Tensor | None:
        """The first half of the layer, the only part that writes its cache."""
        mixed: Tensor | None = self.mixer(self.input_layernorm, residual, pending, cos_sin, batch)
        return mixed

    def feed_forward(self, pending: Tensor | None, residual: Tensor) -> Tensor | None:
        """The second half of the layer, which treats each token independently."""
        added: Tensor | None = self.mlp(self.post_attention_layernorm, residual, pending)
        return added


def make_norm(config: ModelConfig, options: LayerOptions) -> RMSNorm:
    """Create an RMS norm of the residual stream."""
    if config.norms.has_outputs:  # what is added to the stream is no partial sum
        return RMSNorm(config.hidden_size, config.rms_norm_eps, options, config.norm_offset)
    return residual_norm(config.hidden_size, config.rms_norm_eps, options, config.norm_offset)


def make_feed_forward(index: int, config: ModelConfig, options: LayerOptions) -> Layer:
    """Create the dense MLP or the mixture of experts of decoder layer `index`."""
    is_sparse = index >= config.num_layers or config.moe_layers[index]
    if config.moe is not None and is_sparse:
        return MoeBlock(index, config.moe, options.inside(config.moe.names.block))
    return make_mlp(config, options)


def make_mlp(config: ModelConfig, options: LayerOptions) -> GatedMLP:
    """Create the dense MLP of a layer."""
    return GatedMLP(
        config.hidden_size,
        config.intermediate_size,
        config.hidden_act,
        config.mlp_bias,
        options.inside("mlp"),
        fused="gate_up_proj" if config.fused_gate_up else "",
    )
