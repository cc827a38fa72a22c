# SPDX-License-Identifier: Apache-2.0
"""What a model thinks of a text, token by token, beside another one."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import log_softmax

from rtp_llm import LLM, SamplingParams


@dataclass(frozen=True)
class Reading:
    """Log-probabilities of the tokens of a text after the first, and the model's own choices."""

    logprobs: list[float]
    choices: list[int]

    @property
    def perplexity(self) -> float:
        return math.exp(-sum(self.logprobs) / len(self.logprobs))


@dataclass(frozen=True)
class Comparison:
    """`ratio`: logarithm of the ratio of two perplexities, with its standard error `error`;
    `equal`: the share of choices that are equal."""

    ratio: float
    error: float
    equal: float


def compare(found: list[Reading], expected: list[Reading]) -> Comparison:
    """Readings of the same texts; of the second ones the perplexity is divided by."""
    losses, equal = [], 0
    for one, two in zip(found, expected, strict=True):
        losses += [e - f for f, e in zip(one.logprobs, two.logprobs, strict=True)]
        equal += sum(map(operator.eq, one.choices, two.choices))
    lost = torch.tensor(losses)
    count = len(lost)
    return Comparison(float(lost.mean()), float(lost.std()) / math.sqrt(count), equal / count)


def read(llm: LLM, ids: list[int]) -> Reading:
    """Let the engine read the text."""
    params = SamplingParams(max_tokens=1, prompt_logprobs=1)
    (output,) = llm.generate([ids], params, use_tqdm=False)
    assert output.prompt_logprobs is not None
    scores = [each for each in output.prompt_logprobs if each is not None]
    return Reading([each.logprob for each in scores], [each.top[0][0] for each in scores])


def read_in_transformers(model: Any, ids: list[int]) -> Reading:
    """Let a model of transformers read it."""
    row = torch.tensor([ids])
    with torch.inference_mode():
        scores = log_softmax(model(input_ids=row).logits[0, :-1], dim=-1)
    return Reading(scores.gather(1, row[0, 1:, None])[:, 0].tolist(), scores.argmax(-1).tolist())
