# SPDX-License-Identifier: Apache-2.0
"""Random rows of logits of several kinds, and random settings to sample from them with."""

from __future__ import annotations

import torch
from torch import Tensor


def random_settings(rows: int, vocab: int) -> tuple[Tensor, ...]:
    """The arguments of `sample` other than logits: every filter on, off and at its limits."""
    top_k = torch.tensor([-1, 0, 1, 2, 50, max(vocab // 2, 1), vocab, vocab + 5])
    some = torch.rand(4, rows)
    return (
        some[0] * 2 * (torch.rand(rows) > 0.1),
        top_k[torch.randint(0, len(top_k), (rows,))].int(),
        torch.where(some[1] < 0.4, 1.0, some[1]),
        torch.where(some[2] < 0.5, 0.0, some[2] * 0.3),
        torch.randint(-(2**62), 2**62, (rows,)),
        torch.randint(0, 2**40, (rows,)),
    )


def random_logits(rows: int, vocab: int, kind: str) -> Tensor:
    """Rows of one kind: plain, peaked, tied, equal or masked."""
    logits = torch.randn(rows, vocab)
    if kind == "peaked":
        return logits * 12
    if kind == "tied":
        return (logits * 3).round()
    if kind == "equal":
        return torch.full_like(logits, 1.5)
    if kind == "masked":
        logits = torch.where(torch.rand(rows, vocab) < 0.4, -torch.inf, logits)
        logits[:, 0] = 0.0
    return logits
