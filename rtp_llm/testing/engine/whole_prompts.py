# SPDX-License-Identifier: Apache-2.0
"""Batches of prompts for an encoder, as its graphs run them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rtp_llm.request.params import PoolingParams
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import random_prompt
from rtp_llm.worker.inputs.graph_sizes import GraphSize

# Lengths of prompts, and the size that they run in, with prompts of up to 320 tokens. What a large
# batch leaves in the arrays of graphs must not reach the next ones.
PROMPT_BATCHES = (
    ([300, 5, 1], GraphSize(384, 4, 320)),
    ([7], GraphSize(16, 4, 16)),
    ([16], GraphSize(16, 4, 16)),
    ([3, 1, 9, 2, 11], GraphSize(32, 32, 32)),
    ([40] * 30, GraphSize(1536, 64, 320)),
    ([2], GraphSize(16, 4, 16)),
)
PROMPT_TOKENS = 2048  # of a step


def capture_all(engine: TinyEngine) -> None:
    """Capture every graph, as an idle server does."""
    while engine.engine.has_idle_work:
        engine.engine.work_idle()


def mean_states(engine: TinyEngine, lengths: Sequence[int], *, pairs: bool = False) -> Tensor:
    """The mean states [prompts, hidden] of random prompts that are added at once; with ``pairs``
    every other one is a pair of texts."""
    params = PoolingParams(pooling_type="mean", normalize=False)
    requests = []
    for place, length in enumerate(lengths):
        second = length // 2 if pairs and place % 2 else 0
        prompt = random_prompt(length, seed=place)
        requests.append(engine.add_request(prompt, params, second_text=second))
    engine.run()
    return torch.stack([torch.tensor(engine.outcomes[each, 0].pooled) for each in requests])
