# SPDX-License-Identifier: Apache-2.0
"""Shards of the rows and columns of a checkpoint's tensors, held by tensor-parallel ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rtp_llm.distributed.tensor_parallel import TensorParallel

# The vocabulary is divided by so many rows, so that few kernels see an odd edge.
VOCABULARY_ROWS = 64
_MOST_LISTED = 16


class DivisionError(ValueError):
    """A model's sizes cannot be divided among the ranks; the message has the arithmetic."""


@dataclass(frozen=True)
class Cut:
    """The shard of an axis of `whole` entries held by this rank, as half-open ranges `runs`."""

    whole: int
    runs: tuple[tuple[int, int], ...]

    @classmethod
    def even(cls, whole: int, ranks: TensorParallel, name: str) -> Cut:
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
    def of_kv_heads(cls, whole: int, ranks: TensorParallel) -> Cut:
        """Split the KV heads; with fewer heads than ranks, several ranks hold the same head."""
        if whole >= ranks.size:
            return cls.even(whole, ranks, "num_key_value_heads")
        share, rest = divmod(ranks.size, whole)
        if rest:
            raise DivisionError(
                f"{ranks.size} ranks for num_key_value_heads {whole}: {ranks.size} = {whole} x "
                f"{share} + {rest}, so that heads would have unequal numbers of ranks"
            )
        head = ranks.rank // share
        return cls(whole, ((head, head + 1),))

    @classmethod
    def of_vocabulary(cls, whole: int, ranks: TensorParallel) -> Cut:
        """Split the vocabulary into equal consecutive parts; the last one may be smaller."""
        step = VOCABULARY_ROWS * ranks.size
        share = -(-whole // step) * VOCABULARY_ROWS
        if share * (ranks.size - 1) >= whole:  # so small are vocabularies of tests only
            share = -(-whole // ranks.size)
        first = ranks.rank * share
        if share * (ranks.size - 1) >= whole:
            raise DivisionError(f"vocab_size {whole} for {ranks.size} ranks: one would have none")
        return cls(whole, ((first, min(first + share, whole)),))

    @property
    def size(self) -> int:
        """Number of entries that this rank holds."""
        return sum(last - first for first, last in self.runs)

    @property
    def is_whole(self) -> bool:
        """Whether this rank holds the whole axis."""
        return self.size == self.whole

    def wide(self, size: int) -> Cut:
        """The same shard of an axis with `size` entries for each entry of this one."""
        runs = tuple((first * size, last * size) for first, last in self.runs)
        return Cut(self.whole * size, runs)

    def blocks(self, size: int, name: str) -> Cut:
        """The same shard of an axis with one entry for each `size` entries of this one.

        Raises DivisionError, naming the tensor `name`, if a block would be split between ranks.
        """
        inside = {edge for run in self.runs for edge in run} - {self.whole}
        if edge := next((edge for edge in sorted(inside) if edge % size), 0):
            raise DivisionError(
                f"{name} would be cut at {edge} of {self.whole} = {edge // size} x {size} + "
                f"{edge % size}, inside of a block of {size} with one scale"
            )
        runs = tuple((first // size, -(-last // size)) for first, last in self.runs)
        return Cut(-(-self.whole // size), runs)

    def check_runs(self, size: int, name: str) -> None:
        """Raise DivisionError if a block of `size` entries would span two runs."""
        for first, last in self.runs[:-1]:
            if rest := (last - first) % size:
                raise DivisionError(
                    f"{name} would have {last - first} = {(last - first) // size} x {size} + "
                    f"{rest} rows of a part here, no whole blocks of {size}"
                )


def behind_each_other(cuts: Sequence[Cut]) -> Cut:
    """The shard of a tensor in which the axes of `cuts` are concatenated."""
    runs: list[tuple[int, int]] = []
    start = 0
    for cut in cuts:
        for first, last in cut.runs:
            if runs and runs[-1][1] == start + first:
                first = runs.pop()[0] - start
            runs.append((start + first, start + last))
        start += cut.whole
    return Cut(start, tuple(runs))


def in_groups(cuts: Sequence[Cut]) -> Cut:
    """The shard of a tensor that interleaves the rows of several parts group by group.

    `cuts` must lie between groups.
    """
    firsts, lasts = zip(*(cut.runs[0] for cut in cuts), strict=True)
    return Cut(sum(cut.whole for cut in cuts), ((sum(firsts), sum(lasts)),))


def _sizes_that_fit(whole: int) -> str:
    fitting = [str(size) for size in range(1, _MOST_LISTED + 1) if whole % size == 0]
    return f"--tensor-parallel-size {', '.join(fitting)} would not"
