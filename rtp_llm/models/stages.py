# SPDX-License-Identifier: Apache-2.0
"""Divides layers among pipeline stages, balancing the bytes of weights as well as possible.

The first stage also has the embedding and the logits: the last stage returns its result to the
first, which samples. So a tied embedding is stored once, and host work for sampling is done where
the requests are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from rtp_llm.models.causal_lm import ModelOptions
from rtp_llm.models.config import ModelConfig
from rtp_llm.models.registry import model_class


def stage_layers(config: ModelConfig, options: ModelOptions, stages: int) -> list[range]:
    """The layers of each of `stages` stages; reads no files and allocates no memory.

    The model must have at least as many layers as there are stages.
    """
    settings = replace(options.settings, moe_strategy="auto", max_seq_len=2)
    planned = replace(options, settings=settings, planned=True, experts=None, stage=None)
    model = model_class(config.architecture)(config, planned)
    parts: Any = model.model
    sizes = [_bytes(layer) for layer in parts.layers]
    return divide(sizes, stages, _bytes(model) - sum(sizes))


def describe_stages(layers: Sequence[range]) -> list[str]:
    """Describe the contents of each stage for users."""
    found = [
        f"layers {each.start} to {each.stop - 1}" if len(each) > 1 else f"layer {each.start}"
        for each in layers
    ]
    found[0] += ", embedding, logits"
    found[-1] += ", last norm"
    return found


def divide(sizes: Sequence[int], stages: int, first: int = 0) -> list[range]:
    """Split ``sizes`` into non-empty runs such that the largest sum is minimal.

    ``first`` is an additional size in the first run. Raises ValueError if there are fewer sizes
    than ``stages``.
    """
    count = len(sizes)
    if stages > count:
        raise ValueError(f"{count} layers for {stages} stages")
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    # For the first n layers on a number of stages: the largest sum, and the last stage's start.
    best = [(first + ends[n], 0) for n in range(count + 1)]
    starts = []
    for stage in range(1, stages):
        further = [(0, 0)] * (count + 1)
        for n in range(stage + 1, count + 1):
            further[n] = min((max(best[k][0], ends[n] - ends[k]), k) for k in range(stage, n))
        best = further
        starts.append(best)
    runs: list[range] = []
    end = count
    for table in reversed(starts):
        runs.append(range(table[end][1], end))
        end = table[end][1]
    return [range(end), *reversed(runs)]


def _bytes(module: nn.Module) -> int:
    return sum(each.numel() * each.element_size() for each in module.parameters())
