# SPDX-License-Identifier: Apache-2.0
"""Allowed tokens of slots that are copied and used again."""

from __future__ import annotations

import numpy as np
import torch

from rtp_llm.device import resolve_device
from rtp_llm.worker.heads.token_rules import AllowedTokens


def allowed(table: AllowedTokens, *slots: int) -> list[list[int]]:
    logits = torch.zeros(len(slots), 10)
    table.apply(logits, np.array(slots, np.int32))
    return [row.isfinite().nonzero().flatten().tolist() for row in logits]


def test_copies_of_what_is_allowed() -> None:
    table = AllowedTokens(8, resolve_device("cpu"))
    table.put([1], [3, 9])
    table.put([2, 4], [5])
    table.copy(1, [2, 3])  # nothing is on the device yet
    assert allowed(table, 1, 2, 3, 4) == [[3, 9]] * 3 + [[5]]
    table.put([5, 6], [7])  # ends before it is sampled
    table.copy(4, [6])
    assert allowed(table, 4, 5, 6) == [[5], [7], [5]]
    table.copy(0, [6])
    assert allowed(table, 6, 4) == [list(range(10)), [5]]
