# SPDX-License-Identifier: Apache-2.0
"""Memory for the calls in captured graphs, which other ranks map once a capture has succeeded.

Operators read the ranks' addresses when they run (see ops/collective/rank_buffers.py), so that they
may be captured before the addresses are known. Until then nothing of a graph is in other ranks, and
a capture that fails on one of them is undone on all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rtp_llm.device import Device
from rtp_llm.ops.collective.rank_buffers import ABSENT, STATE_WORDS, buffer_words


class CapturedMemory:
    """A CapturedCollective (rtp_llm/worker/graphs/capture_session.py).

    Graphs have room of their own, apart from the PeerMemory of calls that run at once. It is
    registered with the first graph that has a call, for this graph and all later ones.
    """

    def __init__(
        self, device: Device, ranks: Sequence[int], rank: int, capacity: int, abort_word: Tensor
    ) -> None:
        """`ranks`: those that exchange, among the ranks of the capture session, in their order;
        this one is ranks[`rank`]. `capacity` and the pinned `abort_word` are PeerMemory's.

        Raises DeviceError if out of memory, or if the device has none that others can map.
        """
        self.capturing = False
        self._device, self._ranks, self._rank = device, tuple(ranks), rank
        self._memory = device.ipc_memory(buffer_words(len(ranks), capacity), ABSENT)
        place = device.torch_device
        unknown = [0] * len(ranks) + [abort_word.data_ptr()]
        self._buffers = torch.tensor(unknown, dtype=torch.int64, device=place)
        state = torch.zeros(STATE_WORDS, dtype=torch.int32, device=place)
        self._among = (self._buffers, state, rank, capacity)
        self._is_marked = self._is_registered = False
        self._opened: list[int] = []

    def mark(self) -> tuple[Tensor, Tensor, int, int]:
        """The operators' arguments for a call that is being captured."""
        self._is_marked = True
        return self._among

    def pending(self) -> list[bytes]:
        """The handle of the memory, if a call has been captured and the others do not map it."""
        if self._is_registered or not self._is_marked:
            return []
        return [self._memory.handle()]

    def open(self, handles: Sequence[Sequence[bytes]]) -> None:
        """Map the memory of the other ranks; raises DeviceError without access."""
        for rank, source in enumerate(self._ranks):
            (handle,) = handles[source]
            mine = rank == self._rank
            self._opened.append(self._memory.address if mine else self._memory.open(handle))

    def commit(self) -> None:
        """Let graphs find what was opened."""
        if self._opened:
            known = torch.tensor(self._opened, dtype=torch.int64)
            self._buffers[: len(known)].copy_(known)
            self._device.synchronize()  # whatever stream replays a graph
            self._is_registered, self._opened = True, []
        self._is_marked = False

    def discard(self) -> None:
        """Forget the call, and close what was opened for it; what is registered stays."""
        self._is_marked, opened = False, self._opened
        self._opened = []
        if opened:
            self._memory.close()
