# SPDX-License-Identifier: Apache-2.0
"""Weight targets that take only this rank's part of a checkpoint tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from rtp_llm.layers.cuts import Cut, in_groups
from rtp_llm.layers.weights import WeightTarget
from rtp_llm.ops.fp8.fp8_blocks import BLOCK
from rtp_llm.quantization.fp8 import SCALE_NAME


class CutTarget:
    """Loads only `rows` and `columns` of a tensor (None: all) into `target`.

    The shape of `target` is that of the part. The loader reads nothing else of the tensor.
    """

    def __init__(
        self, target: WeightTarget, rows: Cut | None = None, columns: Cut | None = None
    ) -> None:
        self.target, self.rows, self.columns = target, rows, columns
        shape = list(target.shape)
        for axis, cut in enumerate((rows, columns)):
            if cut is not None:
                assert cut.size == shape[axis], f"a target {shape} for a part of {cut}"
                shape[axis] = cut.whole
        self.shape = tuple(shape)

    def destination(self, start: int, stop: int) -> Tensor | None:
        raise AssertionError("the loader reads a part of this tensor")

    def write(self, start: int, rows: Tensor) -> None:
        raise AssertionError("the loader reads a part of this tensor")


def cut_target(
    target: WeightTarget, rows: Cut | None = None, columns: Cut | None = None
) -> WeightTarget:
    """Return a CutTarget, or `target` itself if it takes the whole tensor."""
    rows, columns = (None if cut is None or cut.is_whole else cut for cut in (rows, columns))
    return target if rows is columns is None else CutTarget(target, rows, columns)


def part_taken(target: WeightTarget) -> WeightTarget:
    """Return the target of this rank's part: `target` itself, or the one it cuts for."""
    return target.target if isinstance(target, CutTarget) else target


@dataclass(frozen=True)
class LinearCuts:
    """The shard of a linear layer on this rank: rows of each part, and columns.

    Parts that are not named keep all rows; None keeps all columns. With fewer columns the layer
    computes a partial sum, to which only the first rank adds the bias.
    """

    rows: Mapping[str, Cut] = field(default_factory=dict)
    columns: Cut | None = None

    @property
    def adds_bias(self) -> bool:
        """Whether this rank adds the layer's bias."""
        return not self.gives_parts or (self.columns is not None and self.columns.runs[0][0] == 0)

    @property
    def gives_parts(self) -> bool:
        """Whether results are partial sums that must be reduced over the ranks."""
        return self.columns is not None and not self.columns.is_whole

    def check_blocks(self, name: str, parts: Sequence[str], stored: bool) -> None:
        """Raise DivisionError if the cuts would split FP8 blocks of the tensor `name`.

        `stored`: the checkpoint has FP8 blocks; otherwise they are made from this rank's part.
        """
        rows = self._rows(parts)
        if rows is not None:
            rows.check_runs(BLOCK, name)
        if stored:
            for axis, cut in (("rows", rows), ("columns", self.columns)):
                if cut is not None:
                    cut.blocks(BLOCK, f"{name} ({axis})")

    def apply(self, end: str, parts: Sequence[str], target: WeightTarget) -> WeightTarget:
        """Wrap `target` so that it takes only this rank's part of a tensor.

        `end` is the suffix of the tensor's name in a checkpoint; `parts` are the layer's parts in
        the tensor.
        """
        rows, columns = self._rows(parts), self.columns
        if end == "bias":
            return cut_target(target, rows)
        if end == SCALE_NAME:
            rows, columns = (cut and cut.blocks(BLOCK, end) for cut in (rows, columns))
        return cut_target(target, rows, columns)

    def _rows(self, parts: Sequence[str]) -> Cut | None:
        cuts = [self.rows[part] for part in parts if part in self.rows]
        return (cuts[0] if len(cuts) == 1 else in_groups(cuts)) if cuts else None


WHOLE = LinearCuts()
