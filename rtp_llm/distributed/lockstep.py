# SPDX-License-Identifier: Apache-2.0
"""Ranks step together: before each step they agree whether there is one, and how large."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rtp_llm.distributed.group import Group


@dataclass(frozen=True)
class Agreement:
    """What all ranks have agreed on for a step.

    `tokens`: the most that any rank computes in this step; 0 if none has work.
    `settled`: all ranks have read the same messages and none has work that waits for its last step,
    so that without tokens they may wait for the next message.
    `stop`: one rank was asked to stop. `ready`: all ranks have finished their background work.
    `sequences`, `longest`: the most sequences that any rank computes, and the most tokens of one.
    """

    tokens: int
    settled: bool
    stop: bool
    ready: bool
    sequences: int = 0
    longest: int = 0

    @property
    def idle(self) -> bool:
        """Whether no rank has anything to do until another message arrives."""
        return self.tokens == 0 and self.settled and not self.stop


class Lockstep:
    """One rank's side of the agreement. `seen` is the highest message number it has read.

    A message to one rank is announced to all ranks under the same number: a rank that waits for
    messages must wake when another one gets work, and a rank that read the announcement early must
    not go to sleep before the other has read the message itself.
    """

    def __init__(self, host: Group) -> None:
        self.seen = 0
        self.stopping = False
        self._host = host

    def agree(
        self,
        tokens: int,
        ready: bool = True,
        has_more: bool = False,
        sequences: int = 0,
        longest: int = 0,
    ) -> Agreement:
        """Exchange with all ranks what each of them has for the next step.

        `has_more`: its sequences will have a step after this one, though maybe none in this one.

        Raises RankLostError if a rank is gone.
        """
        said = [tokens, self.seen, -self.seen, int(self.stopping), int(not ready), int(has_more)]
        numbers = torch.tensor([*said, sequences, longest], dtype=torch.int64)
        self._host.maximum(numbers)
        tokens, newest, oldest, stop, waiting, more, *sizes = numbers.tolist()
        return Agreement(tokens, newest == -oldest and not more, bool(stop), not waiting, *sizes)

    def all_can(self, can: bool) -> bool:
        """Whether every rank can; all of them ask at the same time."""
        cannot = torch.tensor([int(not can)])
        self._host.maximum(cannot)
        return not cannot.item()
