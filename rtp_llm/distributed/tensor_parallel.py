# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism: every rank has a part of each layer, and the parts' results are summed."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rtp_llm import ops
from rtp_llm.distributed.group import Group
from rtp_llm.distributed.symmetric_reduce import SymmetricReduce


@dataclass(frozen=True)
class TensorParallel:
    """Rank `rank` of the `size` that compute one model together over `group`; None for one rank.

    All ranks run the same steps, so that they call the same collectives in the same order.
    `direct` makes the sums that it takes, the group all others.
    """

    rank: int
    size: int
    group: Group | None
    direct: SymmetricReduce | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"tensor-parallel rank {self.rank} is not below {self.size}")
        if (self.group is None) != (self.size == 1):
            raise ValueError(f"{self.size} tensor-parallel ranks with the group {self.group}")

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks, the same bits on each of them; in place where it is contiguous.

        Raises RankLostError.
        """
        if self.group is None:
            return tensor
        tensor = tensor.contiguous()
        if self.direct is not None and self.direct.takes(tensor):
            self.direct.all_reduce(tensor)
        else:
            self.group.all_reduce(tensor)
        return tensor

    def add_rms_norm(
        self, part: Tensor, residual: Tensor, weight: Tensor, eps: float, norm_offset: float
    ) -> Tensor:
        """In place: residual += the sum of the ranks' `part`; returns its rms_norm.

        `part` may become the result. Raises RankLostError.
        """
        if self.direct is not None and self.direct.takes(part, residual):
            self.direct.all_reduce_add_rms_norm(part, residual, weight, eps, norm_offset)
            return part
        total = self.all_reduce(part)
        ops.fused_add_rms_norm(total, residual, weight, eps, norm_offset)
        return total

    def add_rms_norm_fp8(
        self, part: Tensor, residual: Tensor, weight: Tensor, eps: float, norm_offset: float
    ) -> tuple[Tensor, Tensor]:
        """The same of [T, C] as rtp_llm.ops.norm_fp8 gives it. Raises RankLostError."""
        if self.direct is not None and self.direct.takes_at_once(part, residual):
            return self.direct.all_reduce_add_rms_norm_fp8(part, residual, weight, eps, norm_offset)
        return ops.norm_fp8(residual, self.all_reduce(part), weight, eps, norm_offset)

    def abort(self) -> None:
        """Another rank is gone: kernels that wait for it end, and what they give is worth nothing.

        From any thread. Backends of groups end their own waits.
        """
        if self.direct is not None:
            self.direct.abort()

    def all_gather(self, columns: Tensor) -> Tensor:
        """[T, N] on each rank -> [T, size * N], the ranks' columns in their order.

        Raises RankLostError.
        """
        if self.group is None:
            return columns
        rows, width = columns.shape
        parts = self.group.all_gather(columns.contiguous()).view(self.size, rows, width)
        return parts.transpose(0, 1).reshape(rows, self.size * width)


class _Nobody(Group):
    """Of ranks that are only planned."""

    def __init__(self, size: int) -> None:
        self.rank, self.size = 0, size

    def all_reduce(self, tensor: Tensor) -> None:
        raise AssertionError("planned ranks compute nothing")

    def all_gather(self, tensor: Tensor) -> Tensor:
        raise AssertionError("planned ranks compute nothing")


SINGLE = TensorParallel(0, 1, None)


def planned_rank(size: int) -> TensorParallel:
    """The first of `size` ranks that do not exist: enough to say what each would have."""
    return SINGLE if size == 1 else TensorParallel(0, size, _Nobody(size))
