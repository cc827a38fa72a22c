# SPDX-License-Identifier: Apache-2.0
"""The reference for draft models: transformers recomputes all tokens each time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rtp_llm.testing.models.transformers_models import expected_logits


class DraftModelOracle:
    """The transformers ``model`` that drafts."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def drafts(self, tokens: Sequence[int], count: int) -> tuple[list[int], float]:
        """The tokens drafted after ``tokens``, whose last one was just sampled.

        Also returns the smallest margin between the best token and the runner-up.
        """
        known, gap = [int(token) for token in tokens], torch.inf
        for _ in range(count):
            best = expected_logits(self._model, known)[-1].topk(2)
            gap = min(gap, float(best.values[0] - best.values[1]))
            known.append(int(best.indices[0]))
        return known[len(tokens) :], gap
