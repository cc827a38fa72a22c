# SPDX-License-Identifier: Apache-2.0
"""Modules that draft for a model: most often a layer that reads the model's hidden states."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from rtp_llm import ops
from rtp_llm.attention import ForwardBatch
from rtp_llm.layers import Layer, Mixer


@dataclass(frozen=True)
class TargetParts:
    """The embedding, logits head and rotary table that a draft head borrows from its target."""

    embed: Callable[[Tensor], Tensor]
    logits: Callable[[Tensor], Tensor]
    cos_sin: Callable[[], Tensor | None]


class DraftModule(Layer):
    """Draft layers with their own keys and values, numbered after the model's layers.

    ``width`` is the size of the state that accompanies each input token; 0: tokens only.
    """

    width: int

    @abstractmethod
    def forward(
        self, ids: Tensor, states: Tensor, batch: ForwardBatch, rows: Tensor | None = None
    ) -> Tensor:
        """Compute new states of the tokens ``ids`` int32 [T] from ``states`` [T, width].

        Positions come from the batch. If ``rows`` [R] is given, returns the states of those only.
        """

    @abstractmethod
    def logits(self, states: Tensor) -> Tensor:
        """Float32 logits [R, draft vocabulary] of new states [R, ...]."""

    def tokens(self, choices: Tensor) -> Tensor:
        """Map ids of the draft vocabulary to the model's token ids, int64 [R]."""
        return choices

    def columns(self, vocab_size: int) -> Tensor | None:
        """The column of `logits` for each token of the model, int32 [vocab_size].

        -1 marks tokens that are never drafted. None: the vocabularies are identical.
        """
        return None


class DraftHead(DraftModule):
    """A draft head of a single layer.

    Its states [T, width] come from the model's hidden states through `condition`, or from its own
    previous output, which lets it draft several tokens. ``captures`` lists the model layers whose
    inputs it reads; if empty, it reads the output of the final norm.
    """

    captures: tuple[int, ...] = ()

    @property
    @abstractmethod
    def mixer(self) -> Mixer:
        """The sequence mixer of the head's layer."""

    @abstractmethod
    def condition(self, hidden: Tensor) -> Tensor:
        """Compute states [T, width] from the model activations [T, ...] that it reads."""

    @abstractmethod
    def forward(
        self, ids: Tensor, states: Tensor, batch: ForwardBatch, rows: Tensor | None = None
    ) -> Tensor:
        """Compute new states [T, width] of the tokens ``ids`` int32 [T].

        ``states`` [T, width] belong to the preceding tokens, and positions in the batch are those
        of the preceding tokens too. With ``rows`` returns [R, width]: keys and values are written
        for all tokens, and everything else is computed for these rows only.
        """


def of_rows(
    rows: Tensor | None, pending: Tensor | None, residual: Tensor
) -> tuple[Tensor | None, Tensor]:
    """Select ``rows`` int32 [R] of ``pending`` and ``residual`` [T, hidden]; None: all rows."""
    if rows is None:
        return pending, residual
    chosen = None if pending is None else ops.embedding(rows, pending)
    return chosen, ops.embedding(rows, residual)
