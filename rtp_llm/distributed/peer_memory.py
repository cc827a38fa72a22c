# SPDX-License-Identifier: Apache-2.0
"""Memory on each rank's GPU that the GPUs of all ranks write to.

Every rank maps the buffers of the others through exchanged handles; multicast is not used. (This is
not PyTorch's symmetric memory, which counts rendezvous per process, so that an engine that is built
again would wait forever for ranks that have just been started.)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.device import Device, DeviceError
from rtp_llm.device.base import IPC_HANDLE_BYTES, IpcMemory, Support
from rtp_llm.distributed.group import Group
from rtp_llm.ops.collective.rank_buffers import ABSENT, MAX_RANKS, STATE_WORDS, buffer_words


class NoPeerMemoryError(RuntimeError):
    """These ranks cannot write into each other's memory; the message says why."""


def peer_memory(device: Device, size: int, operators: Sequence[str]) -> Support:
    """Whether `size` ranks on such devices may try; they know more once they have met."""
    if size > MAX_RANKS:
        return Support.no(f"{size} ranks; the kernels are for at most {MAX_RANKS}")
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
        self,
        rank: int,
        buffers: Tensor,
        capacity: int,
        abort_word: Tensor,
        memory: IpcMemory | None = None,
    ) -> None:
        """`buffers` is the operators' argument; `abort_word` is the pinned word at its end.

        `memory`, which has the buffers, is kept alive by this object.
        """
        self.capacity = capacity
        self._memory = memory
        state = torch.zeros(STATE_WORDS, dtype=torch.int32, device=buffers.device)
        self.abort_word = abort_word
        # The operators' arguments: buffers, state, rank, capacity.
        self.among = (buffers, state, rank, capacity)

    @classmethod
    def connect(cls, group: Group, device: Device, capacity: int, possible: Support) -> PeerMemory:
        """Connect all ranks of `group`, or none; `possible`: whether this rank can, as far as it
        knows beforehand.

        Raises:
            NoPeerMemoryError: on all ranks, if one of them cannot.
            RankLostError: a rank did not join.
        """
        _agree(group, device, possible)
        memory, met, place = None, Support.yes(), device.torch_device
        handle = bytes(IPC_HANDLE_BYTES)
        try:
            memory = device.ipc_memory(buffer_words(group.size, capacity), ABSENT)
            handle = memory.handle()
        except (DeviceError, RuntimeError) as error:
            met = Support.no(f"no memory that other processes map ({error})")
        _agree(group, device, met)
        own = torch.frombuffer(bytearray(handle), dtype=torch.uint8).to(place)
        handles = group.all_gather(own.unsqueeze(0)).cpu().numpy()
        addresses = [0] * group.size
        try:
            assert memory is not None, "all ranks have it"
            for rank, each in enumerate(handles):
                mine = rank == group.rank
                addresses[rank] = memory.address if mine else memory.open(each.tobytes())
        except (DeviceError, RuntimeError) as error:
            met = Support.no(f"no peer access ({error})")
        _agree(group, device, met)
        abort_word = device.pinned_empty((1,), torch.int32)
        abort_word.zero_()
        buffers = torch.tensor([*addresses, abort_word.data_ptr()], dtype=torch.int64, device=place)
        return cls(group.rank, buffers, capacity, abort_word, memory)

    def abort(self) -> None:
        """End the waits of this rank's kernels, now and forever; callable from any thread.

        Their results are then invalid, and no rank can continue.
        """
        self.abort_word.fill_(1)


def _agree(group: Group, device: Device, mine: Support) -> None:
    """Return if all ranks can. Otherwise raises NoPeerMemoryError on all of them."""
    refused = torch.tensor([0.0 if mine else 1.0], device=device.torch_device)
    group.maximum(refused)
    if refused.item():
        raise NoPeerMemoryError(mine.reason or "another rank cannot, and says why in its log")
