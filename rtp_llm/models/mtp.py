"""The layer of multi-token prediction: it predicts one token further, and drafts are made so."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rtp_llm.attention import Backend, ForwardBatch
from rtp_llm.layers import Layer, LayerOptions, MixerShape
from rtp_llm.layers.linear_factory import make_linear
from rtp_llm.models.config import ModelConfig
from rtp_llm.models.decoder_layer import DecoderLayer, make_norm


class MultiTokenPredictor(Layer):
    """From the hidden state of a token and the token behind it to what comes behind that one.

    Its one layer is the decoder's layer number ``index``, with keys and values of its own. What it
    returns is, like the hidden states that it is given, behind a last norm: it takes its own
    results, too, and then predicts further still.

    Sources: DeepSeek-V3 (2024), section 2.2; Qwen3-Next and Qwen3.5, whose names it has.
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
        options = options.inside("mtp")
        hidden = config.hidden_size
        self.pre_fc_norm_embedding = make_norm(config, options)
        self.pre_fc_norm_hidden = make_norm(config, options)
        self.fc = make_linear(2 * hidden, {"fc": hidden}, False, options)
        inside = options.inside("layers.0")
        self.layers = nn.ModuleList([DecoderLayer(index, config, mixer, backend, inside)])
        self.norm = make_norm(config, options)

    @property
    def layer(self) -> DecoderLayer:
        return self.layers[0]  # type: ignore[return-value]

    def forward(
        self, embedded: Tensor, hidden: Tensor, cos_sin: Tensor | None, batch: ForwardBatch
    ) -> Tensor:
        """[T, hidden]: ``hidden`` of tokens, ``embedded`` those behind them, at their positions."""
        both = (self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden))
        residual: Tensor = self.fc(torch.cat(both, 1))
        pending: Tensor | None = self.layer(None, residual, cos_sin, batch)
        return self.norm.after(pending, residual)
