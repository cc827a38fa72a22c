# SPDX-License-Identifier: Apache-2.0
"""What config.json says of a head for scores or labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rtp_llm.models.raw_config import RawConfig

Activation = Literal["sigmoid", "softmax", "identity"]
_PROBLEMS: dict[str, Activation] = {
    "regression": "identity",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}
# Activations of sentence-transformers, by the last part of their names.
_NAMED: dict[str, Activation] = {"Identity": "identity", "Sigmoid": "sigmoid"}


@dataclass(frozen=True)
class ClassifierConfig:
    """The head of a classifier: names of its `labels`; `activation`: turns scores into
    probabilities; `per_token`: each token has scores, instead of the text; `pooling`: the states
    that scores are made of."""

    labels: tuple[str, ...]
    activation: Activation
    per_token: bool = False
    pooling: Literal["last", "cls", "mean", "all"] = "last"


def read_classifier(raw: RawConfig, per_token: bool) -> ClassifierConfig:
    """Read the labels (`id2label` or `num_labels`, two without both) and the activation.

    Raises ModelConfigError for labels that are not numbered from 0.
    """
    named = raw.get("id2label")
    if named is None:
        count = raw.integer("num_labels", 2)
        labels = tuple(f"LABEL_{number}" for number in range(count))
    else:
        known = {str(number): str(label) for number, label in named.items()}
        labels = tuple(known.get(str(number), "") for number in range(len(known)))
        if not labels or "" in labels:
            raise raw.error("id2label", named, "an object with a label for each number from 0")
    pooling: Literal["last", "all"] = "all" if per_token else "last"
    return ClassifierConfig(labels, _activation(raw, len(labels)), per_token, pooling)


def _activation(raw: RawConfig, labels: int) -> Activation:
    """As sentence-transformers and vLLM choose it."""
    settings = raw.get("sentence_transformers") or {}
    name = settings.get("activation_fn") or raw.get("sbert_ce_default_activation_function")
    if isinstance(name, str) and (known := _NAMED.get(name.rpartition(".")[2])):
        return known
    problem = raw.get("problem_type")
    if problem is not None:
        if problem not in _PROBLEMS:
            raise raw.error("problem_type", problem, f"one of {', '.join(_PROBLEMS)}")
        return _PROBLEMS[problem]
    return "sigmoid" if labels == 1 else "softmax"
