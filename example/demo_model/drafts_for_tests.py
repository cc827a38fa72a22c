# SPDX-License-Identifier: Apache-2.0
"""Drafts made one after the other over a growing sequence, as an engine makes them."""

from __future__ import annotations

import torch
from torch import Tensor

from example.demo_model.training.chain import ChainMemory, DraftHead


@torch.inference_mode()
def drafts_as_served(head: DraftHead, known: list[int], hidden: Tensor, steps: int) -> list[int]:
    """The `steps` drafts after `known`, with plain causal attention over all rows each time.

    ``hidden`` [1, T, *]: the target's. Rows of true hidden states come first, then the head's own.
    """
    tokens, rows = known[1:], head.combine(hidden[:, : len(known) - 1])
    drafts: list[int] = []
    for _ in range(steps):
        positions = torch.arange(len(tokens))
        logits, states = head.step(torch.tensor([tokens]), rows, positions, ChainMemory())
        drafts.append(int(head.draft_ids[logits[0, -1].argmax()]))
        tokens, rows = [*tokens, drafts[-1]], torch.cat([rows, states[:, -1:]], 1)
    return drafts
