# SPDX-License-Identifier: Apache-2.0
"""Decoders with a head for scores or labels: classifiers of texts or tokens, and reward models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from rtp_llm.layers import Layer, LayerOptions
from rtp_llm.layers.weights.targets import RowsTarget, WeightTarget
from rtp_llm.models.causal_lm import ModelOptions
from rtp_llm.models.classifiers.classifier_config import read_classifier
from rtp_llm.models.config import ModelConfig
from rtp_llm.models.decoder import DecoderForCausalLM
from rtp_llm.models.raw_config import RawConfig

# What a head consists of: one product, one with a bias, or twice two with a ReLU between them.
HeadKind: TypeAlias = Literal["sequence", "token", "reward", "process_reward"]


class ScoreHead(Layer):
    """Scores float32 [R, labels] of hidden states [R, hidden], computed in float32.

    `score` in the checkpoint: a product, or those of two layers, numbered as in a Sequential.
    """

    def __init__(self, hidden: int, labels: int, kind: HeadKind, options: LayerOptions) -> None:
        super().__init__()
        deep = kind in ("reward", "process_reward")
        sizes = [(hidden, hidden), (labels, hidden)] if deep else [(labels, hidden)]
        self._names = ("0.", "2.") if deep else ("",)
        self.weights = nn.ParameterList(options.parameter(*size) for size in sizes)
        has_bias = kind != "sequence"
        biases = (options.parameter(size[0]) for size in sizes if has_bias)
        self.biases = nn.ParameterList(biases)

    def forward(self, states: Tensor) -> Tensor:
        scores = states.float()
        for number, weight in enumerate(self.weights):
            if number:
                scores = torch.relu(scores)
            bias = self.biases[number].float() if len(self.biases) else None
            scores = linear(scores, weight.float(), bias)
        return scores

    def checkpoint_targets(self, path: str) -> Iterator[tuple[str, WeightTarget]]:
        for number, name in enumerate(self._names):
            yield f"{path}{name}weight", RowsTarget(self.weights[number])
            if len(self.biases):
                yield f"{path}{name}bias", RowsTarget(self.biases[number])


@cache
def classifier_class(
    base: type[DecoderForCausalLM], name: str, kind: HeadKind
) -> type[DecoderForCausalLM]:
    """The architecture ``name``: the decoder ``base`` with a head of this ``kind``."""

    class Classifier(base):  # type: ignore[misc,valid-type]
        """A decoder whose pooled states have scores."""

        def __init__(self, config: ModelConfig, options: ModelOptions) -> None:
            super().__init__(config, options)
            assert config.classifier is not None
            if self.has_logits:
                layers = options.layer_options()
                count = len(config.classifier.labels)
                self.score = ScoreHead(config.hidden_size, count, kind, layers)

        @classmethod
        def read_config(cls, raw: RawConfig) -> ModelConfig:
            per_token = kind in ("token", "process_reward")
            config: ModelConfig = super().read_config(raw)
            return replace(config, classifier=read_classifier(raw, per_token))

        def classify(self, states: Tensor) -> Tensor:
            scores: Tensor = self.score(states)
            return scores

    Classifier.__name__ = Classifier.__qualname__ = name
    made: type[DecoderForCausalLM] = Classifier
    return made
