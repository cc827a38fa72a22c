# SPDX-License-Identifier: Apache-2.0
"""What both kinds of draft head share: a chain of drafts from every position of a text at once.

A row p stands for one anchor: the target knows x[0..p+1], and the head drafts what follows. Step j
of the chain reads token x[p+1+j] and the hidden state of step j-1 (of the target at step 0), stands
at position p+j, and predicts x[p+2+j]. It attends to the rows 0..p of step 0, which were made from
the target's hidden states, and to its own rows of the steps 1..j. The tokens of a text stand for
accepted drafts: what follows a rejected one counts nowhere.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

STEPS = 3
_LOSS_DECAY = (
    0.8  # of each further step of a chain: it is reached only if those before are accepted
)


class ChainMemory:
    """Keys and values [B, heads, T, D] of every step of a chain so far."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention of the next step, [B, T, heads * D].

        ``query`` [B, heads, T, D], ``key`` and ``value`` [B, key heads, T, D], both rotated.
        """
        groups = query.shape[1] // key.shape[1]
        self.keys.append(key.repeat_interleave(groups, dim=1))
        self.values.append(value.repeat_interleave(groups, dim=1))
        length = query.shape[2]
        future = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
        scores = (query @ self.keys[0].transpose(-1, -2)).masked_fill(future, -torch.inf)
        own = [(query * keys).sum(-1, keepdim=True) for keys in self.keys[1:]]
        weights = (torch.cat([scores, *own], -1) / math.sqrt(query.shape[-1])).softmax(-1)
        mixed = weights[..., :length] @ self.values[0]
        for index, values in enumerate(self.values[1:]):
            mixed = mixed + weights[..., length + index, None] * values
        return mixed.transpose(1, 2).flatten(2)


class DraftHead(Protocol):
    """A head that drafts one token after the other."""

    draft_ids: Tensor
    """The target's token ids that it can draft, in the order of its logits."""

    def combine(self, hidden: Tensor) -> Tensor:
        """What step 0 takes from the target's hidden states [B, T, *]."""

    def step(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, memory: ChainMemory
    ) -> tuple[Tensor, Tensor]:
        """Logits [B, T, drafts] and the hidden state [B, T, H] that the next step takes.

        ``tokens`` [B, T], ``hidden`` [B, T, H], ``positions`` [T].
        """


def draft_logits(head: DraftHead, ids: Tensor, hidden: Tensor, steps: int = STEPS) -> list[Tensor]:
    """Logits of each step, [B, T, drafts], whose row p predicts x[p+2+step].

    ``ids`` [B, T] and the target's ``hidden`` [B, T, *]. Past the end the last token is repeated:
    such rows mean nothing.
    """
    memory, logits = ChainMemory(), []
    state = head.combine(hidden)
    positions = torch.arange(ids.shape[1], device=ids.device)
    for step in range(steps):
        tokens = shifted(ids, step + 1)
        scores, state = head.step(tokens, state, positions + step, memory)
        logits.append(scores)
    return logits


def shifted(rows: Tensor, by: int) -> Tensor:
    """``rows`` [B, T, ...] moved left, with the last entry repeated at the end."""
    last = rows.shape[1] - 1
    return rows[:, (torch.arange(rows.shape[1], device=rows.device) + by).clamp(max=last)]


def chain_loss(
    head: DraftHead, ids: Tensor, hidden: Tensor, logits: Tensor, answered: Tensor
) -> Tensor:
    """Cross-entropy against the target's distribution over what can be drafted, of all steps.

    ``logits`` [B, T, V] of the target; ``answered`` [B, T]: x[p] is the assistant's word.
    """
    total = logits.new_zeros(())
    allowed = logits[..., head.draft_ids]
    for step, drafts in enumerate(draft_logits(head, ids, hidden)):
        aim = shifted(allowed, step + 1).softmax(-1)
        counted = shifted(answered, step + 2).clone()
        counted[:, ids.shape[1] - step - 2 :] = False
        entropy = -(aim * drafts.log_softmax(-1)).sum(-1)
        total = total + _LOSS_DECAY**step * entropy[counted].mean()
    return total


def rotate(states: Tensor, positions: Tensor, theta: float, share: float = 1.0) -> Tensor:
    """``states`` [B, heads, T, D] with the first `share` of each head rotated, in halves."""
    size = int(states.shape[-1] * share)
    speeds = theta ** (-torch.arange(0, size, 2, device=states.device) / size)
    angles = positions[:, None] * speeds
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
    turned, rest = states[..., :size], states[..., size:]
    first, second = turned.chunk(2, -1)
    return torch.cat([turned * cos + torch.cat([-second, first], -1) * sin, rest], -1)
