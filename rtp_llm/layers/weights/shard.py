# SPDX-License-Identifier: Apache-2.0
"""Shards of the rows and columns of a checkpoint's tensors, held by tensor-parallel ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rtp_llm.distributed.tensor_parallel import TensorParallel

# The vocabulary is divided by so many rows, so that few kernels see an odd edge.
VOCABULARY_ROWS = 64
_MAX_LISTED = 16


class DivisionError(ValueError):
    """A model's sizes cannot be divided among the ranks; the message has the arithmetic."""


@dataclass(frozen=True)
class Shard:
    """This rank's shard of an axis of `whole` entries, as half-open `ranges` [start, end)."""

    whole: int
    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def even(cls, whole: int, ranks: TensorParallel, name: str) -> Shard:
        """Split `whole` evenly; `name` is its key in config.json, used in errors.

        Raises DivisionError if `whole` is not divisible by the number of ranks.
        """
        share, rest = divmod(whole, ranks.size)
        if rest:
            raise DivisionError(
                f"{name} {whole} = {ranks.size} x {share} + {rest}: {ranks.size} ranks would have "
                f"unequal parts; {_sizes_that_fit(whole)}"
            )
        return cls(whole, ((ranks.rank * share, (ranks.rank + 1) * share),))

    @classmethod
    def of_kv_heads(
        cls, whole: int, ranks: TensorParallel, name: str = "num_key_value_heads"
    ) -> Shard:
        """Split the KV heads; with fewer heads than ranks, several ranks hold the same head."""
        if whole >= ranks.size:
            return cls.even(whole, ranks, name)
        share, rest = divmod(ranks.size, whole)
        if rest:
            raise DivisionError(
                f"{ranks.size} ranks for {name} {whole}: {ranks.size} = {whole} x "
                f"{share} + {rest}, so that heads would have unequal numbers of ranks"
            )
        head = ranks.rank // share
        return cls(whole, ((head, head + 1),))

    @classmethod
    def of_vocabulary(cls, whole: int, ranks: TensorParallel) -> Shard:
        """Split the vocabulary into equal consecutive parts; the last one may be smaller."""
        step = VOCABULARY_ROWS * ranks.size
        share = -(-whole // step) * VOCABULARY_ROWS
        if share * (ranks.size - 1) >= whole:  # so small are vocabularies of tests only
            share = -(-whole // ranks.size)
        start = ranks.rank * share
        if share * (ranks.size - 1) >= whole:
            raise DivisionError(f"vocab_size {whole} for {ranks.size} ranks: one would have none")
        return cls(whole, ((start, min(start + share, whole)),))

    @property
    def size(self) -> int:
        """Number of entries that this rank holds."""
        return sum(end - start for start, end in self.ranges)

    @property
    def is_whole(self) -> bool:
        """Whether this rank holds the whole axis."""
        return self.size == self.whole

    def scaled(self, size: int) -> Shard:
        """The same shard of an axis with `size` entries for each entry of this one."""
        ranges = tuple((start * size, end * size) for start, end in self.ranges)
        return Shard(self.whole * size, ranges)

    def blocks(self, size: int, name: str) -> Shard:
        """The same shard of an axis with one entry for each `size` entries of this one.

        Raises DivisionError, naming the tensor `name`, if a block would be split between ranks.
        """
        inside = {edge for each in self.ranges for edge in each} - {self.whole}
        if edge := next((edge for edge in sorted(inside) if edge % size), 0):
            raise DivisionError(
                f"{name} would be split at {edge} of {self.whole} = {edge // size} x {size} + "
                f"{edge % size}, inside of a block of {size} with one scale"
            )
        ranges = tuple((start // size, -(-end // size)) for start, end in self.ranges)
        return Shard(-(-self.whole // size), ranges)

    def check_ranges(self, size: int, name: str) -> None:
        """Raise DivisionError if a block of `size` entries would span two ranges."""
        for start, end in self.ranges[:-1]:
            if rest := (end - start) % size:
                raise DivisionError(
                    f"{name} would have {end - start} = {(end - start) // size} x {size} + "
                    f"{rest} rows of a part here, no whole blocks of {size}"
                )


def concatenated(shards: Sequence[Shard]) -> Shard:
    """The shard of a tensor in which the axes of `shards` are concatenated."""
    ranges: list[tuple[int, int]] = []
    offset = 0
    for shard in shards:
        for start, end in shard.ranges:
            if ranges and ranges[-1][1] == offset + start:
                start = ranges.pop()[0] - offset
            ranges.append((offset + start, offset + end))
        offset += shard.whole
    return Shard(offset, tuple(ranges))


def grouped(shards: Sequence[Shard]) -> Shard:
    """The shard of a tensor that interleaves the rows of several parts group by group.

    Shards must begin and end between groups.
    """
    starts, ends = zip(*(shard.ranges[0] for shard in shards), strict=True)
    return Shard(sum(shard.whole for shard in shards), ((sum(starts), sum(ends)),))


def _sizes_that_fit(whole: int) -> str:
    fitting = [str(size) for size in range(1, _MAX_LISTED + 1) if whole % size == 0]
    return f"--tensor-parallel-size {', '.join(fitting)} would not"
