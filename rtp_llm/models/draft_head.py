# SPDX-License-Identifier: Apache-2.0
"""What makes drafts beside a model: most often a layer that reads the model's hidden states."""

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
    """What a draft head shares with the model that it drafts for, and does not own: embedding,
    logits, and the rotary table."""

    embed: Callable[[Tensor], Tensor]
    logits: Callable[[Tensor], Tensor]
    cos_sin: Callable[[], Tensor | None]


class DraftModule(Layer):
    """Layers with keys and values of their own, behind those of the model.

    ``width``: what it goes on from beside tokens, of each of them; 0: from tokens alone.
    """

    width: int

    @abstractmethod
    def forward(
        self, ids: Tensor, states: Tensor, batch: ForwardBatch, rows: Tensor | None = None
    ) -> Tensor:
        """New states of tokens ``ids`` int32 [T] at the positions that the batch has, from
        ``states`` [T, width]; only those of the tokens ``rows`` [R], if given."""

    @abstractmethod
    def logits(self, states: Tensor) -> Tensor:
        """Float32 logits [R, its vocabulary] of new states [R, ...]."""

    def tokens(self, choices: Tensor) -> Tensor:
        """Token ids of the model for those of its own vocabulary, int64 [R]."""
        return choices

    def columns(self, vocab_size: int) -> Tensor | None:
        """Where each token of a model of ``vocab_size`` stands in `logits`, int32 [vocab_size], -1
        for those that it never drafts; None: all stand in their own places."""
        return None


class DraftHead(DraftModule):
    """One layer.

    Its states [T, width] come from the model's hidden states by `condition`, or are what it gave
    before: so it drafts several tokens. ``captures``: the layers of the model whose inputs it
    reads; none: what is behind the last norm.
    """

    captures: tuple[int, ...] = ()

    @property
    @abstractmethod
    def mixer(self) -> Mixer:
        """Its attention."""

    @abstractmethod
    def condition(self, hidden: Tensor) -> Tensor:
        """States [T, width] from what it reads of the model, [T, ...]."""

    @abstractmethod
    def forward(
        self, ids: Tensor, states: Tensor, batch: ForwardBatch, rows: Tensor | None = None
    ) -> Tensor:
        """New states [T, width] of tokens ``ids`` int32 [T]: those behind the tokens that
        ``states`` [T, width] belong to, at the positions of these, which the batch has. With
        ``rows``, [R, width]: keys and values are computed of all tokens, the rest of these."""


def of_rows(
    rows: Tensor | None, pending: Tensor | None, residual: Tensor
) -> tuple[Tensor | None, Tensor]:
    """``pending`` and ``residual`` [T, hidden] of the tokens ``rows`` int32 [R]; None: of all."""
    if rows is None:
        return pending, residual
    chosen = None if pending is None else ops.embedding(rows, pending)
    return chosen, ops.embedding(rows, residual)
