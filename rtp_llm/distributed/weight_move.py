# SPDX-License-Identifier: Apache-2.0
"""Experts from rank to rank while steps run: into spare memory first, into place between steps."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rtp_llm.distributed.placement import Placement

if TYPE_CHECKING:
    from rtp_llm.device import Device
    from rtp_llm.distributed.group import Group


@dataclass(frozen=True)
class Transfer:
    """One expert's weights from a slot of a rank to a slot of a rank, maybe the same one."""

    source: int
    source_slot: int
    target: int
    target_slot: int


def transfers(old: Placement, new: Placement) -> list[Transfer]:
    """What must be moved, the same list on every rank.

    An expert comes from the rank itself where that holds it, else from its copies in turn.
    """
    copies = old.copies()
    moves: list[Transfer] = []
    for physical, (before, now) in enumerate(zip(old.experts, new.experts, strict=True)):
        if before == now:
            continue
        target, slot = divmod(physical, old.slots)
        places = [divmod(p, old.slots) for p in copies[now]]
        own = [place for place in places if place[0] == target]
        source = own[0] if own else places[len(moves) % len(places)]
        moves.append(Transfer(*source, target, slot))
    return moves


@dataclass(frozen=True)
class LayerMove:
    """A layer's stacked weights (each [slots, ...]) and the placement that they shall get."""

    layer: int
    weights: tuple[Tensor, ...]
    old: Placement
    new: Placement


class WeightMove(threading.Thread):
    """Fetches what this rank gets in `moves` and gives what others get; then it is `ready`.

    Steps go on meanwhile, since weights that are in use are only read. Messages go through host
    memory: a second communicator on the device could block the steps' communicator.
    """

    def __init__(self, group: Group, device: Device, moves: Sequence[LayerMove]) -> None:
        """`group`: a host group that only this uses; `moves` are the same on every rank."""
        super().__init__(name="weight move", daemon=True)
        self.moves = list(moves)
        self._group, self._device = group, device
        self._spare: list[tuple[Tensor, int, Tensor]] = []  # stacked weight, slot, what it gets
        self._failure: Exception | None = None

    def run(self) -> None:
        """Move everything, layer by layer."""
        try:
            self._device.make_current()
            with self._device.use_stream(self._device.new_stream()):
                for move in self.moves:
                    self._move(move)
                finished = self._device.new_event()
                finished.record()
            finished.synchronize()
        except Exception as error:  # the steps' thread raises it
            self._failure = error

    @property
    def ready(self) -> bool:
        """This rank has all that it gets and the others have all that it gives.

        Raises what failed, RankLostError for instance.
        """
        if self._failure is not None:
            raise self._failure
        return not self.is_alive()

    def put_in_place(self) -> None:
        """Overwrite the weights; between two steps, once every rank is ready."""
        for stacked, slot, fetched in self._spare:
            stacked[slot].copy_(fetched)

    def _move(self, move: LayerMove) -> None:
        rank = self._group.rank
        sends: list[tuple[int, Tensor]] = []
        receives: list[tuple[int, Tensor]] = []
        arrivals: list[tuple[Tensor, int, Tensor]] = []
        for each in transfers(move.old, move.new):
            for stacked in move.weights:
                if each.source == each.target == rank:
                    fetched = stacked[each.source_slot].clone()
                    self._spare.append((stacked, each.target_slot, fetched))
                elif each.source == rank:
                    sends.append((each.target, _as_bytes(stacked[each.source_slot].cpu())))
                elif each.target == rank:
                    arrived = torch.empty(stacked.shape[1:], dtype=stacked.dtype)
                    receives.append((each.source, _as_bytes(arrived)))
                    arrivals.append((stacked, each.target_slot, arrived))
        self._group.exchange(sends, receives)
        for stacked, slot, arrived in arrivals:
            self._spare.append((stacked, slot, arrived.to(stacked.device)))


def _as_bytes(tensor: Tensor) -> Tensor:
    """The same memory; the transport knows no numbers of 8 bits."""
    return tensor.contiguous().view(-1).view(torch.uint8)
