# SPDX-License-Identifier: Apache-2.0
"""What transformers' beam search finds, and scores to compare with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rtp_llm.testing.engine.tiny_engine import Outcome


def expected_beams(
    model: Any, prompt: list[int], width: int, count: int, stops: Sequence[int], **search: Any
) -> tuple[list[list[int]], list[float]]:
    """The sequences of ``width`` beams and at most ``count`` tokens, without padding, and their
    scores; ``stops`` end a sequence."""
    options = {"length_penalty": 1.0, "early_stopping": False, **search}
    found = transformers_beams(model, prompt, width, count, eos_token_id=[*stops], **options)
    answers = [row[len(prompt) :].tolist() for row in found.sequences]
    for answer in answers:
        stop = next((at for at, token in enumerate(answer) if token in stops), count - 1)
        del answer[stop + 1 :]
    return answers, found.sequences_scores.tolist()


def transformers_beams(
    model: Any, prompt: list[int], width: int, count: int, **options: Any
) -> Any:
    """What generate(), with more ``options``, returns of ``width`` beams of at most ``count``
    tokens: ``sequences`` [width, T] with the prompt and padding 0, and ``sequences_scores``."""
    with torch.no_grad():
        return model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            num_beams=width,
            num_return_sequences=width,
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )


def score_of(outcome: Outcome, penalty: float = 1.0) -> float:
    """The score of a sequence, from its log-probabilities."""
    total = sum(entry.logprob for entry in outcome.logprobs)
    return float(total / len(outcome.tokens) ** penalty)
