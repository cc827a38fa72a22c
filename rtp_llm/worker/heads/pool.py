# SPDX-License-Identifier: Apache-2.0
"""The pooling head: vectors, scores and labels from a prompt's hidden states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from rtp_llm.request.params import PoolingParams, PoolingType
from rtp_llm.worker.heads.prompt_outputs import Pooled

if TYPE_CHECKING:
    from rtp_llm.device import Download
    from rtp_llm.worker.model_runner import ModelRunner
    from rtp_llm.worker.new_sequences import NewSequences
    from rtp_llm.worker.plan.step_plan import HeadPlan

# From hidden states [T, C] of a chunk that ends its prompt or not, what was made of the chunks
# before it, and the chunk's first position: rows [R, C], which may be a view of the states.
_Fold = Callable[[Tensor, Tensor | None, int], Tensor]


def _last(states: Tensor, _before: Tensor | None, _position: int) -> Tensor:
    return states[-1:]


def _first(states: Tensor, before: Tensor | None, _position: int) -> Tensor:
    return states[:1] if before is None else before


def _sum(states: Tensor, before: Tensor | None, _position: int) -> Tensor:
    total = states.sum(0, keepdim=True, dtype=torch.float32)
    return total if before is None else before + total


def _max(states: Tensor, before: Tensor | None, _position: int) -> Tensor:
    largest = states.amax(0, keepdim=True)
    return largest if before is None else torch.maximum(before, largest)


def _weighted_sum(states: Tensor, before: Tensor | None, position: int) -> Tensor:
    first = position + 1
    weights = torch.arange(first, first + len(states), dtype=torch.float32, device=states.device)
    total = (weights[:, None] * states).sum(0, keepdim=True)
    return total if before is None else before + total


def _all(states: Tensor, before: Tensor | None, _position: int) -> Tensor:
    return states if before is None else torch.cat([before, states])


_FOLDS: dict[PoolingType, _Fold] = {
    "last": _last,
    "cls": _first,
    "mean": _sum,
    "max": _max,
    "weightedmean": _weighted_sum,
    "all": _all,
}
# What a sum over a prompt of some length is divided by.
_DIVISORS: dict[PoolingType, Callable[[int], float]] = {
    "mean": float,
    "weightedmean": lambda length: length * (length + 1) / 2,
}
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "softmax": lambda scores: torch.softmax(scores, 1),
    "identity": lambda scores: scores,
}


@dataclass
class _Request:
    length: int
    params: PoolingParams
    rows: Tensor | None = None  # of the chunks so far
    pooled: bool = False  # to the prompt's end; the rows may still be on its way


@dataclass(frozen=True)
class PoolPart:
    """Rows float32 [sum of ``sizes``, W] of prompts that end in a step, going to the host."""

    sequences: Sequence[int]
    sizes: Sequence[int]
    values: Download


class PoolHead:
    """Pools hidden states as they pass through steps, chunk by chunk.

    Prompts that need all states do not read the prefix cache. After a preemption a prompt starts
    over.
    """

    def __init__(self, runner: ModelRunner) -> None:
        self._device, self._model, self._dense = runner.device, runner.model, runner.dense
        self._score_tokens = runner.score_tokens
        classifier = runner.model.config.classifier
        self._activation = "sigmoid" if classifier is None else classifier.activation
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
        folded: dict[PoolingParams, dict[int, Tensor]] = {}
        single: dict[PoolingParams, dict[int, int]] = {}
        bounds, positions = plan.cu_seqlens_q.tolist(), plan.positions
        for row, sequence in enumerate(plan.seq_ids.tolist()):
            request = self._requests.get(sequence)
            if request is None or request.pooled:  # and computed again after a preemption
                continue
            begin, end = bounds[row], bounds[row + 1]
            first = int(positions[begin])
            if (place := _single_row(request, begin, end, first)) is not None:
                request.rows, request.pooled = None, True
                single.setdefault(_output_of(request.params), {})[sequence] = place
            elif (rows := _fold(request, hidden[begin:end], first)) is not None:
                folded.setdefault(_output_of(request.params), {})[sequence] = rows
        parts = [self._single_part(params, hidden, rows) for params, rows in single.items()]
        return [*parts, *(self._folded_part(params, rows) for params, rows in folded.items())]

    def _single_part(
        self, params: PoolingParams, hidden: Tensor, places: dict[int, int]
    ) -> PoolPart:
        """The outputs of prompts with the same parameters that are one row of ``hidden`` each."""
        if len(places) == 1:
            (place,) = places.values()
            # The states are in memory that the next step may overwrite.
            rows = hidden[place : place + 1].clone()
        else:
            rows = hidden.index_select(0, self._device.upload(np.array([*places.values()])))
        return self._part(params, [*places], [1] * len(places), rows)

    def _folded_part(self, params: PoolingParams, rows: dict[int, Tensor]) -> PoolPart:
        """The outputs of prompts with the same parameters, computed together."""
        several = [*rows.values()]
        return self._part(params, [*rows], [len(each) for each in several], torch.cat(several))

    def _part(
        self, params: PoolingParams, sequences: list[int], sizes: list[int], rows: Tensor
    ) -> PoolPart:
        values = self._finish(rows, params)
        return PoolPart(sequences, sizes, self._device.start_download(values))

    def _finish(self, rows: Tensor, params: PoolingParams) -> Tensor:
        """Rows [R, C] -> float32 [R, W]."""
        if params.task != "embed":
            scores = self._scores(rows)
            return _ACTIVATIONS[self._activation](scores) if params.use_activation else scores
        values = rows.float()
        for layer in self._dense:
            values = layer(values)
        if params.dimensions is not None:
            values = values[:, : params.dimensions]
        return normalize(values, dim=1) if params.normalize else values.contiguous()

    def _scores(self, rows: Tensor) -> Tensor:
        """Scores float32 [R, labels] of rows [R, C]; with `score_tokens` that of an answer."""
        if self._score_tokens is None:
            return self._model.classify(rows)
        logits = self._model.gather_logits(self._model.compute_logits(rows))
        yes, no = self._score_tokens
        return logits[:, yes : yes + 1] - logits[:, no : no + 1]

    def read(self, parts: Sequence[PoolPart]) -> tuple[list[Pooled], list[frozenset[int]]]:
        """The outputs, except of sequences aborted in the meantime, and one set for each sequence
        with NaN or infinity in its hidden states; waits for the device."""
        found, broken = [], []
        for part in parts:
            (values,) = part.values.read()
            finite, end = np.isfinite(values).all(1).tolist(), 0
            for sequence, size in zip(part.sequences, part.sizes, strict=True):
                begin, end = end, end + size
                if self._requests.pop(sequence, None) is None:
                    continue
                if all(finite[begin:end]):
                    found.append(Pooled(sequence, values[begin:end]))
                else:
                    broken.append(frozenset([sequence]))
        return found, broken


@lru_cache(64)
def _output_of(params: PoolingParams) -> PoolingParams:
    """What of the parameters decides how pooled rows become the output."""
    return msgspec.structs.replace(params, truncate_prompt_tokens=None, priority=0)


def _single_row(request: _Request, begin: int, end: int, first: int) -> int | None:
    """The one row of a step's hidden states that a prompt ends with; None: it goes on, or its
    states are combined. Rows ``begin`` to ``end`` are of its tokens from position ``first`` on."""
    if first + end - begin < request.length:
        return None
    kind = request.params.pooling_type
    if kind == "last":
        return end - 1
    return begin if kind == "cls" and first == 0 else None


def _fold(request: _Request, states: Tensor, first: int) -> Tensor | None:
    """Add ``states`` [T, C] of the tokens from position ``first`` on; returns the prompt's rows
    [R, C] if it ends with them."""
    kind = request.params.pooling_type
    assert kind is not None
    before = None if first == 0 else request.rows
    rows = _FOLDS[kind](states, before, first)
    if first + len(states) < request.length:
        # The states are in memory that the next step may overwrite.
        keeps = before is None and kind in ("cls", "all")
        request.rows = rows.clone() if keeps else rows
        return None
    request.rows, request.pooled = None, True
    divisor = _DIVISORS.get(kind)
    return rows if divisor is None else rows / divisor(request.length)
