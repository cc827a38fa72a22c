# SPDX-License-Identifier: Apache-2.0
"""The pooling head: one vector from a prompt's hidden states, for requests that ask for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from rtp_llm.request.params import PoolingParams, PoolingType

if TYPE_CHECKING:
    from rtp_llm.device import Download
    from rtp_llm.worker.model_runner import ModelRunner
    from rtp_llm.worker.new_sequences import NewSequences
    from rtp_llm.worker.plan.step_plan import HeadPlan

# From hidden states [T, C] of a chunk that ends its prompt or not, what was made of the chunks
# before it, and the chunk's first position: a vector [C], which may be a view of the states.
_Fold = Callable[[Tensor, Tensor | None, int], Tensor]


def _last(states: Tensor, _before: Tensor | None, _position: int) -> Tensor:
    return states[-1]


def _first(states: Tensor, before: Tensor | None, _position: int) -> Tensor:
    return states[0] if before is None else before


def _sum(states: Tensor, before: Tensor | None, _position: int) -> Tensor:
    total = states.sum(0, dtype=torch.float32)
    return total if before is None else before + total


def _max(states: Tensor, before: Tensor | None, _position: int) -> Tensor:
    largest = states.amax(0)
    return largest if before is None else torch.maximum(before, largest)


def _weighted_sum(states: Tensor, before: Tensor | None, position: int) -> Tensor:
    first = position + 1
    weights = torch.arange(first, first + len(states), dtype=torch.float32, device=states.device)
    total = (weights[:, None] * states).sum(0)
    return total if before is None else before + total


_FOLDS: dict[PoolingType, _Fold] = {
    "last": _last,
    "cls": _first,
    "mean": _sum,
    "max": _max,
    "weightedmean": _weighted_sum,
}
# What a sum over a prompt of some length is divided by.
_DIVISORS: dict[PoolingType, Callable[[int], float]] = {
    "mean": float,
    "weightedmean": lambda length: length * (length + 1) / 2,
}


@dataclass(frozen=True)
class Pooled:
    """``values`` float32 [C]: the vector of a sequence's prompt."""

    sequence: int
    values: NDArray[np.float32]


@dataclass
class _Request:
    length: int
    params: PoolingParams
    vector: Tensor | None = None  # of the chunks so far
    pooled: bool = False  # to the prompt's end; the vector may still be on its way


@dataclass(frozen=True)
class PoolPart:
    """The vectors float32 [P, C] of prompts that end in a step, on their way to the host; of each
    the first of ``sizes`` numbers count (None: all)."""

    sequences: Sequence[int]
    sizes: Sequence[int | None]
    values: Download


class PoolHead:
    """Pools hidden states as they pass through steps, chunk by chunk.

    Prompts that need all states do not read the prefix cache. After a preemption a prompt starts
    over.
    """

    def __init__(self, runner: ModelRunner) -> None:
        self._device, self._dense = runner.device, runner.dense
        self._requests: dict[int, _Request] = {}

    def add(self, sequences: NewSequences) -> None:
        """Pool the prompt of a request, if it asks for that."""
        params = sequences.params
        if isinstance(params, PoolingParams):
            assert params.pooling_type is not None, "the engine knows the model's own"
            self._requests[sequences.ids[0]] = _Request(len(sequences.prompt), params)

    def remove(self, sequence: int) -> None:
        """Forget a sequence that was aborted."""
        self._requests.pop(sequence, None)

    def submit(self, hidden: Tensor, plan: HeadPlan) -> list[PoolPart]:
        """The vectors of prompts that end in the hidden states [T, C] of this step; never waits."""
        if not self._requests:
            return []
        ended: dict[int, tuple[Tensor, PoolingParams]] = {}
        for row in np.flatnonzero(np.isin(plan.seq_ids, list(self._requests))).tolist():
            sequence = int(plan.seq_ids[row])
            request = self._requests[sequence]
            if request.pooled:  # and computed again after a preemption
                continue
            begin, end = plan.cu_seqlens_q[row : row + 2].tolist()
            vector = _fold(request, hidden[begin:end], int(plan.positions[begin]))
            if vector is not None:
                ended[sequence] = vector, request.params
        if not ended:
            return []
        vectors, params = zip(*ended.values(), strict=True)
        sizes = [each.dimensions for each in params]
        values = self._device.start_download(self._finish(vectors, params))
        return [PoolPart([*ended], sizes, values)]

    def _finish(self, vectors: Sequence[Tensor], params: Sequence[PoolingParams]) -> Tensor:
        """Embeddings float32 [P, C]: those of length 1 that are to be, cut ones ending in zeros."""
        if len({vector.dtype for vector in vectors}) == 1:  # converted together
            values = torch.stack([*vectors]).float()
        else:
            values = torch.stack([vector.float() for vector in vectors])
        for layer in self._dense:
            values = layer(values)
        width = values.shape[1]
        sizes = np.array([each.dimensions or width for each in params], np.int32)
        if sizes.min() < width:
            columns = torch.arange(width, dtype=torch.int32, device=values.device)
            values = values.masked_fill_(columns >= self._device.upload(sizes)[:, None], 0)
        which = np.array([bool(each.normalize) for each in params])
        if not which.any():
            return values
        if which.all():
            return normalize(values, dim=1)
        mask = self._device.upload(which)[:, None]
        return torch.where(mask, normalize(values, dim=1), values)

    def read(self, parts: Sequence[PoolPart]) -> tuple[list[Pooled], list[frozenset[int]]]:
        """The vectors, except of sequences aborted in the meantime, and one set for each sequence
        with NaN or infinity in its hidden states; waits for the device."""
        found, broken = [], []
        for part in parts:
            (values,) = part.values.read()
            finite = np.isfinite(values).all(1)
            pooled = zip(part.sequences, part.sizes, values, finite, strict=True)
            for sequence, size, vector, is_finite in pooled:
                if self._requests.pop(sequence, None) is None:
                    continue
                if is_finite:
                    found.append(Pooled(sequence, vector[:size]))
                else:
                    broken.append(frozenset([sequence]))
        return found, broken


def _fold(request: _Request, states: Tensor, first: int) -> Tensor | None:
    """Add ``states`` [T, C] of the tokens from position ``first`` on; the prompt's vector [C] if it
    ends with them."""
    kind = request.params.pooling_type
    assert kind is not None
    before = None if first == 0 else request.vector
    vector = _FOLDS[kind](states, before, first)
    if first + len(states) < request.length:
        # The states are in memory that the next step may overwrite.
        request.vector = vector.clone() if kind == "cls" and before is None else vector
        return None
    request.vector, request.pooled = None, True
    divisor = _DIVISORS.get(kind)
    return vector if divisor is None else vector / divisor(request.length)
