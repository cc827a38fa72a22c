"""Memory on each rank's GPU that the GPUs of all ranks write to.

PyTorch's symmetric memory gives every rank the addresses of the others' buffers; multicast is not
used.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.device import Device
from rtp_llm.device.base import Support
from rtp_llm.distributed.group import Group
from rtp_llm.ops.collective.rank_buffers import ABSENT, MOST_RANKS, STATE_WORDS, buffer_words


class NoPeerMemoryError(RuntimeError):
    """These ranks cannot write into each other's memory; the message says why."""


def peer_memory(device: Device, size: int, operators: Sequence[str]) -> Support:
    """Whether `size` ranks on such devices may try; PyTorch knows more once they have met."""
    if size > MOST_RANKS:
        return Support.no(f"{size} ranks; the kernels are for at most {MOST_RANKS}")
    if not all(ops.has_kernel(name, device.torch_device.type) for name in operators):
        return Support.no(f"there is no kernel for {device.name}")
    return Support.yes()


class PeerMemory:
    """Room for `capacity` bytes of each rank in every call; see ops/collective/rank_buffers.py.

    All ranks of a group call the same operators with the same shapes in the same order, on one
    stream each or on streams that wait for each other. Calls can be captured in graphs. Once a rank
    is gone the others' kernels wait until abort() is called in their processes.
    """

    def __init__(
        self, rank: int, buffers: Tensor, capacity: int, abort_word: Tensor, owner: Any = None
    ) -> None:
        """`buffers` as operators take it; `abort_word` is the pinned word that is its last.

        `owner` is kept as long as this is: the buffers are its.
        """
        self.capacity = capacity
        self._abort_word, self._owner = abort_word, owner
        state = torch.zeros(STATE_WORDS, dtype=torch.int32, device=buffers.device)
        # The operators' arguments: buffers, state, rank, capacity.
        self.among = (buffers, state, rank, capacity)

    @classmethod
    def connect(cls, group: Group, device: Device, capacity: int, possible: Support) -> PeerMemory:
        """Of all ranks of `group`, or of none; `possible`: what this rank knows beforehand.

        Raises:
            NoPeerMemoryError: on all of them.
            RankLostError: one did not come.
        """
        _agree(group, device, possible)
        words, owner, place = buffer_words(group.size, capacity), None, device.torch_device
        met, addresses = Support.yes(), [0] * group.size
        try:
            symmetric: Any = importlib.import_module("torch.distributed._symmetric_memory")
            own = symmetric.empty(words, dtype=torch.int32, device=place)
            own.fill_(ABSENT)
            shared = symmetric.rendezvous(own, group.name)
            views = [shared.get_buffer(rank, (words,), torch.int32) for rank in range(group.size)]
            addresses, owner = [view.data_ptr() for view in views], (own, shared)
        except (RuntimeError, ImportError) as error:
            met = Support.no(f"no peer access ({str(error).strip().splitlines()[0]})")
        abort_word = device.pinned_empty((1,), torch.int32)
        abort_word.zero_()
        buffers = torch.tensor([*addresses, abort_word.data_ptr()], dtype=torch.int64, device=place)
        made = cls(group.rank, buffers, capacity, abort_word, owner)
        device.synchronize()
        _agree(group, device, met)  # and no rank writes to another before that has filled its own
        return made

    def abort(self) -> None:
        """End waits of this rank's kernels, now and for ever; from any thread.

        What they give then is worth nothing, and no rank can go on.
        """
        self._abort_word.fill_(1)


def _agree(group: Group, device: Device, mine: Support) -> None:
    """Return when all ranks say yes. Raises NoPeerMemoryError on all ranks otherwise."""
    refused = torch.tensor([0.0 if mine else 1.0], device=device.torch_device)
    group.maximum(refused)
    if refused.item():
        raise NoPeerMemoryError(mine.reason or "another rank cannot, and says why in its log")
