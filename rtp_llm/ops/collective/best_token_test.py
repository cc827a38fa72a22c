# SPDX-License-Identifier: Apache-2.0
"""The reference of the best token over ranks, on any device."""

from __future__ import annotations

import torch

from rtp_llm.ops.collective.best_token_reference import best_token_reference


def test_the_best_token_of_one_rank_is_its_own() -> None:
    logits = torch.tensor([[1.0, 3.0], [-torch.inf, -torch.inf], [torch.nan, 1.0]])
    tokens, alone = torch.tensor([1, 0, 1], dtype=torch.int32), torch.zeros(2, dtype=torch.int64)
    status = torch.tensor([0, 2, 1], dtype=torch.int8)
    best_token_reference(logits, tokens, status, 100, alone, alone, 0, 1024)
    assert tokens.tolist() == [101, 0, 0] and status.tolist() == [0, 2, 1]
