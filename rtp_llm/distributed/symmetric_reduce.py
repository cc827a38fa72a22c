"""Sums of small tensors over ranks whose GPUs write into each other's memory, in one kernel.

PyTorch's symmetric memory gives every rank the addresses of the others' buffers; multicast is not
used. What is larger than a limit, and what these ranks cannot do, stays with the group's backend.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.device import Device
from rtp_llm.device.base import Support
from rtp_llm.distributed.group import Group
from rtp_llm.ops.collective.all_reduce import ABSENT, MOST_RANKS, STATE_WORDS, buffer_words

# (part of a GPU's name, ranks) -> bytes of the largest tensor that is summed here faster than by
# NCCL, alone or with its norm, as `./dev bench gpu_all_reduce` measured it for two ranks. More
# ranks were not measured: these are sizes for which other engines take such kernels.
_LIMITS: dict[tuple[str, int], int] = {
    ("H200", 2): 4 << 20,
    ("H200", 4): 256 << 10,
    ("H200", 8): 128 << 10,
    ("H100", 2): 4 << 20,
    ("H100", 4): 256 << 10,
    ("H100", 8): 128 << 10,
}
_LIMIT_OF_OTHERS = 64 << 10
_ACCESS_BYTES = 16
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class NoDirectSumsError(RuntimeError):
    """These ranks cannot write into each other's memory; the message says why."""


def direct_sums(device: Device, size: int) -> Support:
    """Whether `size` ranks on such devices may try; PyTorch knows more once they have met."""
    if size > MOST_RANKS:
        return Support.no(f"{size} ranks; the kernel sums over at most {MOST_RANKS}")
    if not ops.has_kernel("all_reduce", device.torch_device.type):
        return Support.no(f"there is no kernel for {device.name}")
    return Support.yes()


def limit_of(description: str, size: int) -> int:
    """Bytes of the largest tensor that `size` ranks on such devices sum by themselves."""
    known = (limit for (name, n), limit in _LIMITS.items() if n == size and name in description)
    return next(known, _LIMIT_OF_OTHERS)


def explain_sums(device: Device, size: int) -> str:
    """Who makes the sums over `size` ranks, as far as is known before they have met."""
    possible = direct_sums(device, size)
    if not possible:
        return f"all by {device.collectives}; {possible.reason}"
    limit = limit_of(device.description(), size) >> 10
    return (
        f"to {limit} KiB by one kernel over peer memory, larger ones, and all where there is no "
        f"peer access, by {device.collectives}"
    )


class SymmetricReduce:
    """All ranks of a group call the same methods with the same shapes in the same order, on one
    stream each or on streams that wait for each other. Calls can be captured in graphs.

    Once a rank is gone the others' kernels wait until abort() is called in their processes.
    """

    def __init__(
        self, rank: int, buffers: Tensor, capacity: int, abort_word: Tensor, owner: Any = None
    ) -> None:
        """`buffers`: see rtp_llm.ops.all_reduce; `abort_word` is the pinned word that is its last.

        `owner` is kept as long as this is: the buffers are its.
        """
        self.capacity = capacity
        self._rank, self._buffers, self._abort_word, self._owner = rank, buffers, abort_word, owner
        self._state = torch.zeros(STATE_WORDS, dtype=torch.int32, device=buffers.device)

    @classmethod
    def connect(cls, group: Group, device: Device, limit: int = 0) -> SymmetricReduce:
        """Of all ranks of `group`, or of none; `limit` in bytes (0: of the table).

        Raises:
            NoDirectSumsError: on all of them.
            RankLostError: one did not come.
        """
        capacity = limit or limit_of(device.description(), group.size)
        _agree(group, device, direct_sums(device, group.size))
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

    def takes(self, *tensors: Tensor) -> bool:
        """Whether the sum of the first one, and what is made of the others with it, is made here.

        The same answer on all ranks for tensors of equal shapes and dtypes.
        """
        first = tensors[0]
        row = first.shape[-1] * first.element_size() if first.dim() else 1
        return (
            first.dtype in _DTYPES
            and 0 < first.nbytes <= self.capacity
            and row % _ACCESS_BYTES == 0
            and all(each.is_contiguous() for each in tensors)
        )

    def all_reduce(self, x: Tensor) -> None:
        """x = its sum over the ranks, the same bits on all; see rtp_llm.ops.all_reduce."""
        ops.all_reduce(x, self._buffers, self._state, self._rank, self.capacity)

    def all_reduce_add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, norm_offset: float
    ) -> None:
        """residual += the sum of x, x = its norm; see rtp_llm.ops.all_reduce_add_rms_norm."""
        ops.all_reduce_add_rms_norm(
            x,
            residual,
            weight,
            eps,
            norm_offset,
            self._buffers,
            self._state,
            self._rank,
            self.capacity,
        )

    def abort(self) -> None:
        """End waits of this rank's kernels, now and for ever; from any thread.

        What they give then is worth nothing, and no rank can go on.
        """
        self._abort_word.fill_(1)


def _agree(group: Group, device: Device, mine: Support) -> None:
    """Return when all ranks say yes. Raises NoDirectSumsError on all ranks otherwise."""
    refused = torch.tensor([0.0 if mine else 1.0], device=device.torch_device)
    group.maximum(refused)
    if refused.item():
        raise NoDirectSumsError(mine.reason or "another rank cannot, and says why in its log")
