# SPDX-License-Identifier: Apache-2.0
"""Weight targets that take only this rank's part of a checkpoint tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from rtp_llm.layers.weights.shard import DivisionError, Shard, concatenated, grouped
from rtp_llm.layers.weights.stored_format import StoredFormat
from rtp_llm.layers.weights.targets import WeightTarget


class ShardTarget:
    """Loads only `rows` and `columns` of a tensor (None: all) into `target`.

    The shape of `target` is that of the part. The loader reads nothing else of the tensor.
    Raises DivisionError for columns in several ranges, which it cannot read.
    """

    def __init__(
        self, target: WeightTarget, rows: Shard | None = None, columns: Shard | None = None
    ) -> None:
        self.target, self.rows, self.columns = target, rows, columns
        if columns is not None and len(columns.ranges) > 1:
            raise DivisionError(
                f"a rank would have columns {columns.ranges} of a tensor, not one range"
            )
        shape = list(target.shape)
        for axis, shard in enumerate((rows, columns)):
            if shard is not None:
                assert shard.size == shape[axis], f"a target {shape} for {shard}"
                shape[axis] = shard.whole
        self.shape = tuple(shape)

    def destination(self, start: int, stop: int) -> Tensor | None:
        raise AssertionError("the loader reads a part of this tensor")

    def write(self, start: int, rows: Tensor) -> None:
        raise AssertionError("the loader reads a part of this tensor")


def shard_target(
    target: WeightTarget, rows: Shard | None = None, columns: Shard | None = None
) -> WeightTarget:
    """Return a ShardTarget, or `target` itself if it takes the whole tensor."""
    rows, columns = (
        None if shard is None or shard.is_whole else shard for shard in (rows, columns)
    )
    return target if rows is columns is None else ShardTarget(target, rows, columns)


def local_target(target: WeightTarget) -> WeightTarget:
    """Return the target of this rank's part: `target` itself, or the one inside a ShardTarget."""
    return target.target if isinstance(target, ShardTarget) else target


@dataclass(frozen=True)
class LinearShards:
    """The shard of a linear layer on this rank: rows of each part, and columns.

    Parts that are not named keep all rows; None keeps all columns. With fewer columns the layer
    computes a partial sum, to which only the first rank adds the bias. `concatenated`: a tensor of
    several parts has one after the other, not group by group.
    """

    rows: Mapping[str, Shard] = field(default_factory=dict)
    columns: Shard | None = None
    concatenated: bool = False

    @property
    def adds_bias(self) -> bool:
        """Whether this rank adds the layer's bias."""
        return not self.is_partial or (self.columns is not None and self.columns.ranges[0][0] == 0)

    @property
    def is_partial(self) -> bool:
        """Whether results are partial sums that must be reduced over the ranks."""
        return self.columns is not None and not self.columns.is_whole

    def check_blocks(
        self, name: str, parts: Sequence[str], stored: StoredFormat, block_rows: int = 1
    ) -> None:
        """Raise DivisionError if the shards would split blocks of the tensor `name`.

        Blocks are those of its format; `block_rows`: those of rows that the layer makes of it.
        """
        rows, block = self._rows(parts), max(stored.row_block, block_rows)
        if rows is not None and block > 1:
            rows.check_ranges(block, name)
        if rows is not None and stored.row_block > 1:
            rows.blocks(stored.row_block, f"{name} (rows)")
        if self.columns is not None and stored.column_block > 1:
            self.columns.blocks(stored.column_block, f"{name} (columns)")

    def apply(
        self, suffix: str, parts: Sequence[str], target: WeightTarget, stored: StoredFormat
    ) -> WeightTarget:
        """Wrap `target` so that it takes only this rank's part of a tensor.

        `suffix` ends the tensor's name in a checkpoint; `parts` are the layer's parts in it, and
        `stored` is their format.
        """
        rows, columns = self._rows(parts), self.columns
        if suffix == "bias":
            return shard_target(target, rows)
        target = stored.placed(suffix, target, rows, columns)
        return shard_target(target, *stored.shard(suffix, rows, columns))

    def _rows(self, parts: Sequence[str]) -> Shard | None:
        shards = [self.rows[part] for part in parts if part in self.rows]
        if len(shards) < 2:
            return shards[0] if shards else None
        return concatenated(shards) if self.concatenated else grouped(shards)


WHOLE = LinearShards()
