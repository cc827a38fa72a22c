# SPDX-License-Identifier: Apache-2.0
"""All-to-all between GPUs that write into each other's memory: one kernel to send, one to return.

Room is for as many tokens of every rank as the fullest has, as in low-latency mode, so that the
host waits for nothing; but what is not there is not sent. Steps that exceed the buffers, and ranks
that cannot do this, stay with the group's backend.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.device import Device
from rtp_llm.device.base import Support
from rtp_llm.distributed.dispatch import AllToAll, CapacityError, Sent
from rtp_llm.distributed.group import Group
from rtp_llm.distributed.peer_memory import NoPeerMemoryError, PeerMemory, peer_memory
from rtp_llm.distributed.rows import TokenRows
from rtp_llm.ops.collective.rank_buffers import PACK_BYTES, buffer_words
from rtp_llm.ops.collective.token_exchange import MAX_CHOICES, message_bytes

_logger = logging.getLogger("rtp_llm.engine")
_MAX_BYTES = 256 << 20  # of a rank's buffer
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class TokenLayout:
    """Every token of a model: a row of `hidden` numbers, and `k` choices."""

    hidden: int
    dtype: torch.dtype
    k: int

    def max_tokens(self, size: int) -> int:
        """Return how many tokens of each of `size` ranks fit into the largest buffer."""
        places = 4 * buffer_words(size, PACK_BYTES) // PACK_BYTES
        row = message_bytes(1, self.hidden, self.dtype, self.k) - PACK_BYTES
        return (_MAX_BYTES // places - PACK_BYTES) // row

    def check(self) -> Support:
        """Whether the kernels take it."""
        row = self.hidden * self.dtype.itemsize
        if self.dtype not in _DTYPES or row % PACK_BYTES or not 1 <= self.k <= MAX_CHOICES:
            return Support.no(
                f"rows of {self.hidden} {self.dtype} with {self.k} experts; the kernels send "
                f"floats in multiples of {PACK_BYTES} bytes, with at most {MAX_CHOICES}"
            )
        return Support.yes()


def direct_dispatch(device: Device, size: int) -> Support:
    """Whether `size` ranks on such devices may try; they know more once they have met."""
    return peer_memory(device, size, ["dispatch_tokens", "combine_tokens"])


def explain_dispatch(device: Device, size: int) -> str:
    """What brings tokens to experts of `size` ranks, as far as is known before they have met."""
    possible = direct_dispatch(device, size)
    if not possible:
        return f"to experts and back by {device.collectives}; {possible.reason}"
    return (
        f"to experts and back by a kernel each over peer memory in steps that {_MAX_BYTES >> 20} "
        f"MiB of a GPU hold, in larger ones, and where there is no peer access, by "
        f"{device.collectives}"
    )


class SymmetricDispatch:
    """The peer memory for all-to-all exchanges, shared by all layers and steps."""

    def __init__(self, memory: PeerMemory, max_tokens: int) -> None:
        self.memory, self.max_tokens = memory, max_tokens

    @classmethod
    def connect(
        cls, group: Group, device: Device, layout: TokenLayout, step_tokens: int
    ) -> SymmetricDispatch | None:
        """For steps of `step_tokens` tokens of a rank, or as many as the largest buffer holds.

        None on all ranks of `group` where one of them cannot, which the log says. Raises
        RankLostError.
        """
        possible = direct_dispatch(device, group.size)
        possible = possible and layout.check()
        max_tokens = min(step_tokens, layout.max_tokens(group.size))
        capacity = message_bytes(max_tokens, layout.hidden, layout.dtype, layout.k)
        try:
            made = cls(PeerMemory.connect(group, device, capacity, possible), max_tokens)
        except NoPeerMemoryError as error:
            _logger.info("tokens go to experts by %s alone: %s", device.collectives, error)
            return None
        made._warm_up(device, layout)
        return made

    def _warm_up(self, device: Device, layout: TokenLayout) -> None:
        """Load the kernels, which a capture could not."""
        x = torch.zeros(0, layout.hidden, dtype=layout.dtype, device=device.torch_device)
        ids = torch.zeros(0, layout.k, dtype=torch.int32, device=x.device)
        there, _, _ = ops.dispatch_tokens(x, ids, ids.float(), 1, 1, *self.memory.among)
        none = ids.new_full((len(there), layout.k), -1)
        ops.combine_tokens(there, none, ids, 1, *self.memory.among)
        device.synchronize()


@dataclass(frozen=True)
class _SentDirectly(Sent):
    ids: Tensor  # of the tokens that were sent
    there: Tensor  # slots of those that came


class SymmetricAllToAll(AllToAll):
    """Rows are where they would be in low-latency mode of the same capacity."""

    def __init__(self, group: Group, slots: int, capacity: int, memory: PeerMemory) -> None:
        """`capacity` tokens of a rank at most, the same number on every rank, from 1."""
        super().__init__(group, slots)
        self._capacity, self._memory = capacity, memory

    def dispatch(self, rows: TokenRows) -> tuple[TokenRows, Sent]:
        tokens, hidden = rows.x.shape
        if tokens > self._capacity:
            raise CapacityError(self._group.rank, tokens, self._capacity)
        x, ids, weights = ops.dispatch_tokens(
            rows.x, rows.ids, rows.weights, self._slots, self._capacity, *self._memory.among
        )
        return TokenRows(x, ids, weights), _SentDirectly(tokens, hidden, rows.ids, ids)

    def combine(self, results: Tensor, sent: Sent) -> Tensor:
        assert isinstance(sent, _SentDirectly)
        return ops.combine_tokens(
            results.contiguous(), sent.there, sent.ids, self._slots, *self._memory.among
        )
