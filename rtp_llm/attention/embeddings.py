# SPDX-License-Identifier: Apache-2.0
"""Embeddings that replace the embeddings of placeholder tokens in a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor


class InputEmbeddings(ABC):
    """Rows [_, width] for tokens that are placeholders of something else, an image for example."""

    @abstractmethod
    def place(self, hidden: Tensor) -> Tensor:
        """Return ``hidden`` [T, H], which may be changed, with the first H numbers of the rows in
        the place of the placeholders' embeddings."""


@dataclass(frozen=True)
class IndexedEmbeddings(InputEmbeddings):
    """The M rows [M, width] of a step that runs eagerly, and their tokens, ``places`` int64 [M]."""

    rows: Tensor
    places: Tensor

    def place(self, hidden: Tensor) -> Tensor:
        return hidden.index_copy_(0, self.places, self.rows[:, : hidden.shape[1]])


@dataclass(frozen=True)
class MaskedEmbeddings(InputEmbeddings):
    """Memory that graphs read: a row [T, width] for each token, and bool [T, 1]: whether it counts.

    Without placeholders in a step the mask is false everywhere.
    """

    rows: Tensor
    mask: Tensor

    def place(self, hidden: Tensor) -> Tensor:
        return torch.where(self.mask, self.rows[:, : hidden.shape[1]], hidden)

    def first(self, tokens: int) -> MaskedEmbeddings:
        """Return a view for the first `tokens` tokens."""
        return replace(self, rows=self.rows[:tokens], mask=self.mask[:tokens])
