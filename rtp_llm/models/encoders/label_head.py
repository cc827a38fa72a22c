# SPDX-License-Identifier: Apache-2.0
"""The heads of encoders that classify texts or tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, linear

from rtp_llm.layers import Layer, LayerOptions, WeightTarget
from rtp_llm.layers.weights.targets import RowsTarget
from rtp_llm.models.classifiers.classifier_config import ClassifierConfig, read_classifier
from rtp_llm.models.config import ModelConfig
from rtp_llm.models.raw_config import RawConfig
from rtp_llm.models.refusals import architecture_of

_TEXTS, _TOKENS = "ForSequenceClassification", "ForTokenClassification"
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "relu": torch.relu,
    "tanh": torch.tanh,
}


@dataclass(frozen=True)
class HeadNames:
    """Names in the checkpoint: of the layer before the last one ("" if there is none), of its norm
    ("" likewise), and of the last one. `activation` follows the first layer."""

    first: str = ""
    activation: str = "tanh"
    last: str = "classifier"
    norm: str = ""
    first_bias: bool = True
    norm_bias: bool = True


class LabelHead(Layer):
    """Scores float32 [R, labels] of pooled states [R, hidden], computed in float32.

    Weights in a stored format become floats while they load.
    """

    first_bias: nn.Parameter | None
    norm_bias: nn.Parameter | None

    def __init__(self, config: ModelConfig, names: HeadNames, options: LayerOptions) -> None:
        super().__init__()
        assert config.classifier is not None
        hidden, self.names, self._eps = config.hidden_size, names, config.rms_norm_eps
        self._first_stored = options.format_of(names.first)
        self._last_stored = options.format_of(names.last)
        self.first_bias = self.norm_bias = None
        if names.first:
            self.first = options.parameter(hidden, hidden)
            self.first_bias = options.parameter(hidden) if names.first_bias else None
        if names.norm:
            self.norm = options.parameter(hidden)
            self.norm_bias = options.parameter(hidden) if names.norm_bias else None
        labels = len(config.classifier.labels)
        self.last, self.last_bias = options.parameter(labels, hidden), options.parameter(labels)

    def forward(self, states: Tensor) -> Tensor:
        x, names = states.float(), self.names
        if names.first:
            product = linear(x, self.first.float(), _float(self.first_bias))
            x = _ACTIVATIONS[names.activation](product)
        if names.norm:
            size = x.shape[1:]
            x = layer_norm(x, size, self.norm.float(), _float(self.norm_bias), self._eps)
        return linear(x, self.last.float(), self.last_bias.float())

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        names = self.names
        if names.first:
            for suffix, target in self._first_stored.float_targets(self.first.detach()):
                yield f"{names.first}.{suffix}", target
        if self.first_bias is not None:
            yield f"{names.first}.bias", RowsTarget(self.first_bias)
        if names.norm:
            yield f"{names.norm}.weight", RowsTarget(self.norm)
        if self.norm_bias is not None:
            yield f"{names.norm}.bias", RowsTarget(self.norm_bias)
        for suffix, target in self._last_stored.float_targets(self.last.detach()):
            yield f"{names.last}.{suffix}", target
        yield f"{names.last}.bias", RowsTarget(self.last_bias)


def read_labels(raw: RawConfig) -> ClassifierConfig | None:
    """The labels of an architecture that classifies; None for one that does not."""
    named = architecture_of(raw.values)
    if not named.endswith((_TEXTS, _TOKENS)):
        return None
    if named.endswith(_TOKENS):
        return read_classifier(raw, per_token=True)
    config, pooling = read_classifier(raw, per_token=False), raw.get("classifier_pooling") or "cls"
    if pooling not in ("cls", "mean"):
        raise raw.error("classifier_pooling", pooling, '"cls" or "mean"')
    return replace(config, pooling="mean" if pooling == "mean" else "cls")


def _float(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.float()
