# SPDX-License-Identifier: Apache-2.0
"""The comparison of a model with transformers' that parity tests make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rtp_llm.models.causal_lm import CausalLM
from rtp_llm.testing.models.contiguous_runner import ContiguousRunner
from rtp_llm.testing.models.transformers_models import clear_prompt, expected_logits, random_prompt

NEW_TOKENS = 64
TOLERANCE: dict[str, Any] = {"rtol": 1e-4, "atol": 2e-4}  # of logits that reach about 20
# Norms of heads that nearly cancel make more of rounding: transformers' logits are up to 6e-4 from
# those in float64, ours up to 3e-4.
HYBRID_TOLERANCE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-3}


def check_tokens_and_chunks(
    model: CausalLM,
    reference: Any,
    length: int = 53,
    chunks: Sequence[int] = (1, 7, 16, 33),
    tolerance: dict[str, Any] = TOLERANCE,
) -> None:
    """Whole-prompt logits against the reference, chunked ones against whole ones, then greedy."""
    prompt, expected = clear_prompt(reference, length, NEW_TOKENS)
    longest = length + NEW_TOKENS
    whole = ContiguousRunner(model, 1, longest).prefill(prompt)
    torch.testing.assert_close(whole, expected_logits(reference, prompt), **tolerance)
    for chunk in chunks:
        parts = ContiguousRunner(model, 1, longest).prefill(prompt, chunk)
        torch.testing.assert_close(parts, whole, **tolerance)
    assert len(set(expected)) > 8
    assert ContiguousRunner(model, 1, longest).greedy(prompt, NEW_TOKENS, chunks[-1]) == expected


def check_mixed_batch(model: CausalLM, tolerance: dict[str, Any] = TOLERANCE) -> None:
    """Prompts chunked in one batch give the same results as each sequence alone."""
    prompts = [random_prompt(length, seed=length) for length in (50, 1, 17)]
    alone = [ContiguousRunner(model, 1, 64).prefill(prompt) for prompt in prompts]
    runner = ContiguousRunner(model, 3, 64)
    together: list[list[torch.Tensor]] = [[], [], []]
    # Sequence 0 is prefilled in chunks while 1 waits and 2 decodes; steps hold 0 to 20 tokens each.
    cuts = [(20, 40, 41, 50), (0, 0, 1, 1), (15, 16, 16, 17)]
    for step in range(4):
        spans = [slice(cut[step - 1] if step else 0, cut[step]) for cut in cuts]
        news = [prompt[span] for prompt, span in zip(prompts, spans, strict=True)]
        for gathered, logits in zip(together, runner.step(news), strict=True):
            gathered.append(logits)
    for gathered, single in zip(together, alone, strict=True):
        torch.testing.assert_close(torch.cat(gathered), single, **tolerance)
