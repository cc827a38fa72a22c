# SPDX-License-Identifier: Apache-2.0
"""The stages of a pipeline: each has consecutive layers, and passes on their output."""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rtp_llm.distributed.group import Group

if TYPE_CHECKING:
    from rtp_llm.distributed.world import World


class Transfer:
    """A tensor on its way to another rank, or from one."""

    def __init__(self, tensor: Tensor, work: Any, hop: Hop) -> None:
        self._tensor, self._work, self._hop = tensor, work, hop

    def wait(self) -> Tensor:
        """Return the tensor: device work from now on finds it received, or may change it if sent.

        In host memory it is complete when this returns. Raises RankLostError.
        """
        with self._hop.talking():
            self._work.wait()
        return self._tensor


class Hop(Group):
    """Two ranks of consecutive stages, one of which sends to the other."""

    def __str__(self) -> str:
        return "one of two stages"

    def talking(self) -> AbstractContextManager[None]:
        """Inside, an error of the backend becomes a RankLostError."""
        return self._talking("a transfer")

    def begin_send(self, tensor: Tensor) -> Transfer:
        """Send `tensor`, which must not change until the transfer has been waited for."""
        with self.talking():
            work = self._api.isend(tensor, group_dst=1 - self.rank, group=self._handle)
        return Transfer(tensor, work, self)

    def begin_receive(self, tensor: Tensor) -> Transfer:
        """Fill `tensor` with the next message of the other rank."""
        with self.talking():
            work = self._api.irecv(tensor, group_src=1 - self.rank, group=self._handle)
        return Transfer(tensor, work, self)


@dataclass(frozen=True)
class Pipeline:
    """Stage `stage` of `stages`, as a ring: the last one sends to the first.

    `previous` and `following` are groups of two: this rank and the rank with the same part of the
    previous or the next stage. Each direction has a group of its own, so that a message that is
    not yet received holds up no other.
    """

    stage: int = 0
    stages: int = 1
    previous: Hop | None = None
    following: Hop | None = None
    _sends: deque[Transfer] = field(default_factory=deque)

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.stages - 1

    def send(self, states: Tensor) -> None:
        """Send `states` [T, hidden] to the next stage; they must not change any more. Waits only
        for what was sent `stages` messages ago."""
        assert self.following is not None
        if len(self._sends) == self.stages:
            self._sends.popleft().wait()
        self._sends.append(self.following.begin_send(states.contiguous()))

    def receive(self, states: Tensor) -> Transfer:
        """Fill `states` with the next message of the previous stage."""
        assert self.previous is not None
        return self.previous.begin_receive(states)


SINGLE_STAGE = Pipeline()


def connect_stages(world: World, stages: int, tensor: int) -> tuple[Pipeline, Group | None]:
    """The ring of this rank, and the group of its stage's `tensor` ranks (None: it is alone).

    Rank s * `tensor` + t of `world` is part t of stage s. All ranks call this.
    """
    stage, part = divmod(world.rank, tensor)
    within: Group | None = None
    if tensor > 1:
        for each in range(stages):
            found = world.subgroup([each * tensor + t for t in range(tensor)], Group)
            within = found or within
        if within is not None:
            within.warm_up(world.place)
    previous: Hop | None = None
    following: Hop | None = None
    number = torch.zeros(1, device=world.place)
    for source in range(stages):
        for t in range(tensor):
            target = (source + 1) % stages
            hop = world.subgroup([source * tensor + t, target * tensor + t], Hop)
            if hop is None or t != part:
                continue
            # The first message makes the connection, for which both ranks wait: so all ranks do
            # this in the same order, and not in a step.
            if source == stage:
                following = hop
                hop.begin_send(number).wait()
            else:
                previous = hop
                hop.begin_receive(torch.empty_like(number)).wait()
    return Pipeline(stage, stages, previous, following), within
