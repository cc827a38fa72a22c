# SPDX-License-Identifier: Apache-2.0
"""What a step feeds a model, for layers that are not called with the step's batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from rtp_llm.attention.batch import ForwardBatch


@dataclass(frozen=True)
class InputNeeds:
    """What a model is fed in addition to token ids and positions of one axis.

    ``mrope``: positions of three axes. ``adapters``: each sequence's adapter. ``token_types``:
    which of two texts a token belongs to. ``embedding_width``: numbers of type ``embedding_dtype``
    in a row that replaces a token's embedding; 0: nothing does.
    """

    mrope: bool = False
    adapters: bool = False
    token_types: bool = False
    embedding_width: int = 0
    embedding_dtype: torch.dtype = torch.float32

    @cached_property
    def settings(self) -> frozenset[str]:
        """The scheduler's settings with which plans have what is needed."""
        names = ("mrope", "adapters", "token_types")
        return frozenset(name for name in names if getattr(self, name))

    @cached_property
    def any(self) -> bool:
        """Whether a model needs any of these inputs."""
        return bool(self.settings) or self.embedding_width > 0


class ModelInputs:
    """The inputs of the step that a model computes, at hand for all of its layers.

    A model makes one and passes it to its layers (LayerOptions.inputs) when it creates them. In
    graphs the inputs are memory that stays in place.
    """

    def __init__(self, needs: InputNeeds = InputNeeds()) -> None:
        self.needs = needs
        self._batch: ForwardBatch | None = None
        self._token_adapters: Tensor | None = None

    def begin(self, batch: ForwardBatch) -> None:
        """Called by the model before the layers of a step."""
        self._batch, self._token_adapters = batch, None

    @property
    def batch(self) -> ForwardBatch:
        """The batch of the step."""
        assert self._batch is not None, "no step has begun"
        return self._batch

    @property
    def token_adapters(self) -> Tensor:
        """The adapter of each token, int64 [T], -1: none. Computed once per step."""
        if self._token_adapters is None:
            batch = self.batch
            assert batch.adapter_slots is not None, "the model needs no adapters"
            slots = batch.adapter_slots.long()
            self._token_adapters = slots.index_select(0, token_sequences(batch))
        return self._token_adapters


def token_sequences(batch: ForwardBatch) -> Tensor:
    """The sequence of each token, int64 [T]; padding after the last one may have any."""
    ends, count = batch.cu_seqlens_q[1:], batch.token_ids.shape[0]
    tokens = torch.arange(count, dtype=ends.dtype, device=ends.device)
    return torch.searchsorted(ends, tokens, right=True).clamp_(max=len(ends) - 1)


def token_types(batch: ForwardBatch) -> Tensor:
    """Int32 [T]: 1 for tokens of the second text of a sequence that has two, else 0."""
    assert batch.second_texts is not None, "the model needs no token types"
    begins = batch.second_texts.index_select(0, token_sequences(batch))
    return ((begins > 0) & (batch.positions >= begins)).int()


NO_INPUTS = ModelInputs()
