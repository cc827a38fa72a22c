# SPDX-License-Identifier: Apache-2.0
"""How weights that stay as stored lie in memory, in a layer or for each of many experts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import ClassVar

from torch import Tensor, nn

from rtp_llm.layers.options import LayerOptions
from rtp_llm.layers.weights.stored_format import NamedTargets, StoredFormat


def rows_of(whole: Tensor, parts: Mapping[str, int], part: str) -> Tensor:
    """The rows of `part` in a tensor with those of all `parts` (name -> rows) in order."""
    starts = dict(zip(parts, accumulate(parts.values(), initial=0), strict=False))
    return whole.narrow(0, starts[part], parts[part])


class WeightLayout(ABC):
    """weight [..., rows, columns] of all `parts` (name -> rows) in order, and its scales."""

    formats: ClassVar[frozenset[str]]  # those kept as they are stored

    def __init__(
        self, parts: Mapping[str, int], columns: int, stored: Sequence[StoredFormat] = ()
    ) -> None:
        """`stored`: the formats of the parts' tensors, of which some layouts need the details."""
        self.parts, self.columns, self.stored = dict(parts), columns, tuple(stored)

    @classmethod
    def fits(cls, stored: Sequence[StoredFormat]) -> bool:
        """Whether the layout keeps tensors of these formats together; their names are known."""
        return True

    @classmethod
    @abstractmethod
    def takes(cls, options: LayerOptions) -> bool:
        """Whether layers on the device of `options` multiply weights of `formats` as they are."""

    @abstractmethod
    def make(self, options: LayerOptions, *outer: int) -> tuple[nn.Parameter, nn.Parameter]:
        """Allocate the weight and the scales; `outer` are axes in front of the rows."""

    @abstractmethod
    def targets(
        self, weight: Tensor, scale: Tensor, part: str, stored: StoredFormat
    ) -> NamedTargets:
        """(name suffix, target) pairs that load `part` from the format it is stored in.

        Raises FormatError for a format that is not taken.
        """
