# SPDX-License-Identifier: Apache-2.0
"""Targets of which a rank takes a part of the checkpoint's tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from rtp_llm.layers.cuts import Cut, in_groups
from rtp_llm.layers.weights import WeightTarget
from rtp_llm.ops.fp8.fp8_blocks import BLOCK
from rtp_llm.quantization.fp8 import SCALE_NAME


class CutTarget:
    """The `rows` and `columns` of a tensor that `target` takes, whose shape is that of its part.

    None: all. The loader reads no more of the tensor, and gives it to `target`.
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
    """A CutTarget, or `target` itself where all of the tensor is wanted."""
    rows, columns = (None if cut is None or cut.is_whole else cut for cut in (rows, columns))
    return target if rows is columns is None else CutTarget(target, rows, columns)


def part_taken(target: WeightTarget) -> WeightTarget:
    """What takes the part of a tensor that is here: `target` itself, or what it cuts for."""
    return target.target if isinstance(target, CutTarget) else target


@dataclass(frozen=True)
class LinearCuts:
    """What of a linear layer is here: of the rows of each part, and of the columns.

    A part that is not named is here with all rows; None: all columns are. With fewer columns the
    layer gives one rank's part of a sum, to which the first rank's adds the bias.
    """

    rows: Mapping[str, Cut] = field(default_factory=dict)
    columns: Cut | None = None

    @property
    def adds_bias(self) -> bool:
        """Whether this rank adds the layer's bias."""
        return not self.gives_parts or (self.columns is not None and self.columns.runs[0][0] == 0)

    @property
    def gives_parts(self) -> bool:
        """Whether results are parts of a sum over the ranks."""
        return self.columns is not None and not self.columns.is_whole

    def check_blocks(self, name: str, parts: Sequence[str], stored: bool) -> None:
        """DivisionError where blocks of FP8 weights of the tensor `name` would be cut.

        `stored`: the checkpoint has such blocks; else they are made of the part that is here.
        """
        rows = self._rows(parts)
        if rows is not None:
            rows.check_runs(BLOCK, name)
        if stored:
            for axis, cut in (("rows", rows), ("columns", self.columns)):
                if cut is not None:
                    cut.blocks(BLOCK, f"{name} ({axis})")

    def apply(self, end: str, parts: Sequence[str], target: WeightTarget) -> WeightTarget:
        """`target`, or the part of it that is here; `end` of the tensor's name in a checkpoint, the
        layer's `parts` in it."""
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
