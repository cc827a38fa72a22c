# SPDX-License-Identifier: Apache-2.0
"""How many entries the arrays of a step have, as annotations of their types."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, TypeVar

import numpy as np
from numpy.typing import NDArray

AXES = 3  # of a position: time, height, width


class Extent(Enum):
    """The shape of an array for B sequences with T tokens, R rows of logits and O outputs."""

    TOKENS = "[T]"
    TOKEN_AXES = "[T, 3]"
    SEQUENCES = "[B]"
    ROWS = "[R]"
    SEQUENCE_STARTS = "[B + 1]"
    OUTPUT_STARTS = "[O + 1]"
    ROW_STARTS = "[R + 1]"
    HISTORY = "[history_cu[R]]"
    # One array per cache group; those of attention are empty for recurrent groups, and the other
    # way round.
    GROUP_TOKENS = "per attention group [T]"
    GROUP_TABLE = "per attention group [B, M]"
    GROUP_COPIES = "per attention group [P, 2]"
    GROUP_STATES = "per recurrent group [B]"

    @property
    def per_group(self) -> bool:
        return self.value.startswith("per ")

    @property
    def width(self) -> int:
        """How many numbers an entry has."""
        return AXES if self is Extent.TOKEN_AXES else 1


@dataclass(frozen=True)
class OnDevice:
    """Each step copies the array to the device; graphs fill the places of a larger step with
    ``padding``, or with the array's last entry where it is None."""

    padding: int | None = 0


@dataclass(frozen=True)
class Needs:
    """Only plans of a scheduler with the setting ``setting`` have the array; others have an empty
    one, which nobody fills, shares or copies."""

    setting: str


Number = TypeVar("Number", bound=np.generic)
Groups = tuple[NDArray[np.int32], ...]

PerToken = Annotated[NDArray[Number], Extent.TOKENS]
PerTokenAxis = Annotated[NDArray[Number], Extent.TOKEN_AXES]
PerSequence = Annotated[NDArray[Number], Extent.SEQUENCES]
PerRow = Annotated[NDArray[Number], Extent.ROWS]
SequenceStarts = Annotated[NDArray[Number], Extent.SEQUENCE_STARTS]
OutputStarts = Annotated[NDArray[Number], Extent.OUTPUT_STARTS]
RowStarts = Annotated[NDArray[Number], Extent.ROW_STARTS]
PerHistoryToken = Annotated[NDArray[Number], Extent.HISTORY]
GroupTokens = Annotated[Groups, Extent.GROUP_TOKENS]
GroupTable = Annotated[Groups, Extent.GROUP_TABLE]
GroupCopies = Annotated[Groups, Extent.GROUP_COPIES]
GroupStates = Annotated[Groups, Extent.GROUP_STATES]
