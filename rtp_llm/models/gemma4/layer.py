# SPDX-License-Identifier: Apache-2.0
"""A layer of Gemma 4."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.nn.functional import gelu

from rtp_llm.attention import Backend, ForwardBatch
from rtp_llm.layers import Layer, LayerOptions, MixerShape, WeightTarget, make_linear
from rtp_llm.layers.weights.targets import RowsTarget
from rtp_llm.models.config import ModelConfig
from rtp_llm.models.decoder_layer import make_norm
from rtp_llm.models.gemma4.experts import SideBySideExperts
from rtp_llm.models.output_norm_layer import OutputNormLayer


class LayerScalar(Layer):
    """The number [1] that the residual is multiplied by after a layer."""

    def __init__(self, options: LayerOptions) -> None:
        super().__init__()
        self.weight = options.parameter(1)

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        yield path.rstrip("."), RowsTarget(self.weight)


class Gemma4Layer(OutputNormLayer):
    """A layer with output norms. Experts may be computed beside its MLP; what each token's
    embedding for this layer says is added after it, and then the whole residual is scaled."""

    def __init__(
        self,
        index: int,
        config: ModelConfig,
        mixer: MixerShape,
        backend: Backend[Any] | None,
        options: LayerOptions,
    ) -> None:
        """``mixer`` makes an AloneMixer; see DecoderLayer."""
        own = config.gemma4
        assert own is not None
        if own.wide_shared_mlp and own.is_shared(index, config.num_layers):
            config = replace(config, intermediate_size=2 * config.intermediate_size)
        super().__init__(index, config, mixer, backend, options)
        self.moe: SideBySideExperts | None = None
        if config.moe is not None:
            self.moe = SideBySideExperts(index, config.moe, options)
            self.post_feedforward_layernorm_1 = make_norm(config, options)
            self.pre_feedforward_layernorm_2 = make_norm(config, options)
            self.post_feedforward_layernorm_2 = make_norm(config, options)
        if own.per_layer_size:
            hidden, size = config.hidden_size, own.per_layer_size
            gate, out = {"per_layer_input_gate": size}, {"per_layer_projection": hidden}
            self.per_layer_input_gate = make_linear(hidden, gate, False, options)
            self.per_layer_projection = make_linear(size, out, False, options)
            self.post_per_layer_input_norm = make_norm(config, options)
        self.layer_scalar = LayerScalar(options)

    def forward(
        self,
        pending: Tensor | None,
        residual: Tensor,
        cos_sin: Tensor | None,
        batch: ForwardBatch,
        embedded: Tensor | None = None,
    ) -> None:
        """Add `pending` (None: nothing) to `residual` [T, hidden] in place, then apply the layer.

        `embedded` [T, P] are the tokens' embeddings for this layer, if there are any.
        """
        residual.add_(self._added(pending, residual, cos_sin, batch))
        if embedded is not None:
            gate = gelu(self.per_layer_input_gate(residual), approximate="tanh")
            projected = self.per_layer_projection(gate.mul_(embedded))
            residual.add_(self.post_per_layer_input_norm(projected))
        residual.mul_(self.layer_scalar.weight)

    def _feed_forward(self, residual: Tensor, mixed: Tensor) -> Tensor:
        added = super()._feed_forward(residual, mixed)
        if self.moe is None:
            return added
        added = self.post_feedforward_layernorm_1(added)
        routed = self.moe.beside(self.pre_feedforward_layernorm_2, residual)
        routed = self.post_feedforward_layernorm_2(self._ranks.all_reduce(routed))
        return added.add_(routed)  # type: ignore[no-any-return]
