# SPDX-License-Identifier: Apache-2.0
"""All-reduce between GPUs that write into each other's memory, in one kernel.

Tensors above a limit, and ranks that cannot do this, stay with the group's backend.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rtp_llm import ops
from rtp_llm.device import Device
from rtp_llm.device.base import Support
from rtp_llm.distributed.captured_memory import CapturedMemory
from rtp_llm.distributed.group import Group
from rtp_llm.distributed.peer_memory import PeerMemory, peer_memory
from rtp_llm.ops.collective.rank_buffers import PACK_BYTES

# (part of a GPU's name, ranks) -> bytes of the largest tensor that is summed here faster than by
# NCCL, alone or with its norm, as `./dev bench gpu_all_reduce` measured it for two ranks; on H100s
# before sums travelled while others are added. To 64 MiB it was measured on H200s: 211 us where
# NCCL takes 249, with the norm 235 and 326. Larger ones are more pieces of the same size, which
# prompts of models with wide rows need (8,192 tokens of 8,192 channels: 128 MiB). More ranks were
# not measured: two shots move the bytes that NCCL moves, and on two GPUs our kernel sums 16 MiB in
# two thirds of NCCL's time.
_LIMITS: dict[tuple[str, int], int] = {
    ("H200", 2): 256 << 20,
    ("H200", 4): 16 << 20,
    ("H200", 8): 16 << 20,
    ("H100", 2): 4 << 20,
    ("H100", 4): 16 << 20,
    ("H100", 8): 16 << 20,
}
_LIMIT_OF_OTHERS = 64 << 10
# Ranks -> bytes from which on two shots are faster than one: a rank sends 2 (ranks - 1) / ranks
# messages instead of ranks - 1, at 300 GB/s, and waits once more, for about 2 us. Not measured.
_TWO_SHOTS_FROM = {4: 384 << 10, 8: 128 << 10}
# Of one call. Larger tensors are summed in pieces: a rank's buffers are three times as large for
# each rank.
_MAX_CALL_BYTES = 16 << 20
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def direct_sums(device: Device, size: int) -> Support:
    """Whether `size` ranks on such devices may try; they know more once they have met."""
    norms = ["all_reduce_add_rms_norm", "all_reduce_add_rms_norm_fp8"]
    return peer_memory(device, size, ["all_reduce", *norms])


def limit_of(description: str, size: int) -> int:
    """Bytes of the largest tensor that `size` ranks on such devices sum by themselves."""
    known = (limit for (name, n), limit in _LIMITS.items() if n == size and name in description)
    return next(known, _LIMIT_OF_OTHERS)


def two_shots_from(size: int) -> int:
    """Bytes from which on `size` ranks sum in two shots; 0: never."""
    return _TWO_SHOTS_FROM.get(size, 0)


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
    """All ranks of a group call the same methods with the same shapes in the same order; see
    PeerMemory.
    """

    def __init__(self, memory: PeerMemory, limit: int, two_shots_from: int = 0) -> None:
        """`limit`: bytes of the largest tensor; more than `memory` holds is summed in pieces.
        `two_shots_from`: bytes from which on there are two shots (0: never); what is below goes
        into `memory` at once."""
        self._memory, self._limit = memory, limit
        self.captured: CapturedMemory | None = None  # without one, graphs share `memory`
        self._two_shots_from = two_shots_from or limit + 1
        assert min(self._two_shots_from - 1, limit) <= memory.capacity or not two_shots_from
        self._ranks = len(memory.among[0]) - 1

    @classmethod
    def connect(cls, group: Group, device: Device, limit: int = 0) -> SymmetricReduce:
        """Of all ranks of `group`, or of none; `limit` in bytes (0: of the table).

        Raises as PeerMemory.connect.
        """
        limit = _least(group, device, limit or limit_of(device.description(), group.size))
        many, capacity = two_shots_from(group.size), min(limit, _MAX_CALL_BYTES)
        if many:
            capacity = max(min(limit, many), 2 * capacity // group.size)
        memory = PeerMemory.connect(group, device, capacity, direct_sums(device, group.size))
        return cls(memory, limit, many)

    def capture_apart(self, device: Device, ranks: Sequence[int]) -> None:
        """Give calls in captured graphs memory of their own; see CapturedMemory, and for `ranks`.

        Raises DeviceError if there is none.
        """
        _, _, rank, capacity = self._memory.among
        word = self._memory.abort_word
        self.captured = CapturedMemory(device, ranks, rank, capacity, word)

    @property
    def _among(self) -> tuple[Tensor, Tensor, int, int]:
        """The operators' arguments for the call that follows."""
        if self.captured is not None and self.captured.capturing:
            return self.captured.mark()
        return self._memory.among

    def takes(self, *tensors: Tensor) -> bool:
        """Whether the sum of the first one, and what is made of the others with it, is made here.

        The same answer on all ranks for tensors of equal shapes and dtypes.
        """
        first = tensors[0]
        row = first.shape[-1] * first.element_size() if first.dim() else 1
        return (
            first.dtype in _DTYPES
            and 0 < first.nbytes <= self._limit
            and row % PACK_BYTES == 0
            and all(each.is_contiguous() for each in tensors)
        )

    def takes_at_once(self, *tensors: Tensor) -> bool:
        """Whether one call makes it of tensors of two dimensions."""
        first = tensors[0]
        return self.takes(*tensors) and len(first) <= self._max_rows(first)

    def in_two_shots(self, rows: Tensor) -> bool:
        """Whether a call on these rows, or on as many as it takes of them, has two shots.

        Every rank has a row then, and a call takes so many that those which are left over, fewer
        than ranks, go into the memory in one shot.
        """
        many = rows.nbytes >= self._two_shots_from and len(rows) >= self._ranks > 2
        return many and 2 * self._ranks * (rows.nbytes // len(rows)) <= self._memory.capacity

    def all_reduce(self, x: Tensor) -> None:
        """x = its sum over the ranks, the same bits on all; see rtp_llm.ops.all_reduce."""
        packs = x.view(-1, PACK_BYTES // x.element_size())
        for (chunk,) in _chunks(self._max_rows(packs), packs):
            ops.all_reduce(chunk, *self._among, two_shot=self.in_two_shots(chunk))

    def all_reduce_add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, norm_offset: float
    ) -> None:
        """residual += the sum of x, x = its norm; see rtp_llm.ops.all_reduce_add_rms_norm."""
        rows, among = x.flatten(0, -2), self._among
        for chunk, added in _chunks(self._max_rows(rows), rows, residual.flatten(0, -2)):
            shots = self.in_two_shots(chunk)
            ops.all_reduce_add_rms_norm(
                chunk, added, weight, eps, norm_offset, *among, two_shot=shots
            )

    def all_reduce_add_rms_norm_fp8(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, norm_offset: float
    ) -> tuple[Tensor, Tensor]:
        """See rtp_llm.ops.all_reduce_add_rms_norm_fp8; of what is taken at once."""
        among, shots = self._among, self.in_two_shots(x)
        return ops.all_reduce_add_rms_norm_fp8(
            x, residual, weight, eps, norm_offset, *among, two_shot=shots
        )

    def _max_rows(self, rows: Tensor) -> int:
        """Of one call. In two shots a rank's slice is in the buffers twice, and nothing else."""
        row, capacity = rows.nbytes // len(rows), self._memory.capacity
        if self.in_two_shots(rows):
            return self._ranks * (capacity // (2 * row))
        return capacity // row

    def best_token(self, logits: Tensor, tokens: Tensor, status: Tensor, first: int) -> None:
        """In place: tokens and status for all ranks' columns; see rtp_llm.ops.best_token."""
        rows = self._memory.capacity // PACK_BYTES
        for some, best, outcome in _chunks(rows, logits, tokens, status):
            ops.best_token(some, best, outcome, first, *self._among)

    def abort(self) -> None:
        """End the waits of this rank's kernels for good; see PeerMemory.abort."""
        self._memory.abort()


def _least(group: Group, device: Device, limit: int) -> int:
    """The least of the ranks' limits: their GPUs may differ."""
    found = torch.tensor([-limit], dtype=torch.float64, device=device.torch_device)
    group.maximum(found)
    return int(-found.item())


def _chunks(rows: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """`rows` of each, one after the other; all have the same number of them."""
    if len(tensors[0]) <= rows:
        yield tensors
        return
    for start in range(0, len(tensors[0]), rows):
        yield tuple(each[start : start + rows] for each in tensors)
