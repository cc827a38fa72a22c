# SPDX-License-Identifier: Apache-2.0
"""What prompts are made of in addition to token ids: checks, limits, and the scheduler's view."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rtp_llm.engine.messages import INDEX_BITS, AddRequest, RequestError
from rtp_llm.request.mm_features import ITEM_BYTES, MultiModalFeature
from rtp_llm.request.params import max_output

if TYPE_CHECKING:
    from rtp_llm.engine.limits import EngineLimits
    from rtp_llm.worker.forked_sequences import ForkedSequences

_AXES = 3


def check_inputs(request: AddRequest, limits: EngineLimits) -> None:
    """Raise ValueError for embeddings or positions that do not suit the prompt or the model."""
    if request.mm_features:
        _check_features(request, limits)
    if request.mrope_positions or request.mrope_position_delta:
        _check_positions(request, limits)


def _check_features(request: AddRequest, limits: EngineLimits) -> None:
    if not limits.embedding_width:
        raise ValueError("mm_features: the model takes token ids alone")
    end = 0
    for number, feature in enumerate(request.mm_features):
        name, place = f"mm_features[{number}]", feature.mm_position
        if place.length < 1 or not end <= place.offset <= len(request.prompt_token_ids):
            raise ValueError(
                f"{name}: {place.length} tokens from {place.offset} are empty, outside the prompt "
                "or begin before the end of the feature before"
            )
        end = place.end
        if end > len(request.prompt_token_ids):
            raise ValueError(
                f"{name}: it ends at {end}, the prompt at {len(request.prompt_token_ids)}"
            )
        wanted = place.length * limits.embedding_width * ITEM_BYTES[feature.dtype]
        if len(feature.data) != wanted:
            raise ValueError(
                f"{name}: data has {len(feature.data)} bytes, not the {wanted} of "
                f"[{place.length}, {limits.embedding_width}] numbers of type {feature.dtype}"
            )
        if not feature.identifier:
            raise ValueError(f"{name}: it has no identifier")
    size = mm_bytes(request.mm_features)
    if size > limits.max_mm_bytes:
        raise ValueError(
            f"mm_features have {size} bytes, more than the {limits.max_mm_bytes} for all requests"
        )


def _check_positions(request: AddRequest, limits: EngineLimits) -> None:
    if not limits.mrope:
        raise ValueError("mrope_positions: the model's positions have one axis")
    length, size = len(request.prompt_token_ids), len(request.mrope_positions)
    if size != length * _AXES * 4:
        raise ValueError(
            f"mrope_positions has {size} bytes, not the {length * _AXES * 4} of int32 [3, {length}]"
        )
    positions = _positions(request)
    delta, longest = request.mrope_position_delta, limits.max_model_len
    last = length + max_output(request.params, longest - length) - 1 + delta
    low, high = min(int(positions.min()), length + delta), max(int(positions.max()), last)
    if low < 0 or high >= longest:
        raise ValueError(
            f"mrope_positions and mrope_position_delta={delta} go from {low} to {high}, outside "
            f"the {longest} positions of the longest sequence"
        )


def scheduler_inputs(request: AddRequest) -> dict[str, Any]:
    """What Scheduler.add takes for a checked request in addition to ids."""
    inputs: dict[str, Any] = {}
    if request.mm_features:
        inputs["spans"] = [
            (each.mm_position.offset, each.mm_position.length, each.cache_key)
            for each in request.mm_features
        ]
    if request.mrope_positions:
        positions = _positions(request)
        offsets = positions - np.arange(len(positions), dtype=np.int32)[:, None]
        inputs["mrope_offsets"] = np.ascontiguousarray(offsets)
        inputs["mrope_position_delta"] = request.mrope_position_delta
    return inputs


def _positions(request: AddRequest) -> NDArray[np.int32]:
    """int32 [P, 3]."""
    return np.frombuffer(request.mrope_positions, np.int32).reshape(_AXES, -1).T


def mm_bytes(features: Iterable[MultiModalFeature]) -> int:
    """The size of all embeddings."""
    return sum(len(each.data) for each in features)


class EmbeddingBudget:
    """Limits the embeddings of all requests that wait or run. Belongs to the engine's thread."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._taken = max_bytes, 0
        self._requests: dict[int, tuple[int, set[int]]] = {}  # bytes, and sequences that are left

    def take(self, request: AddRequest) -> None:
        """Count the embeddings of a request until its last sequence ends.

        Raises:
            RequestError: queue_full, with the numbers.
        """
        if not request.mm_features or not (size := mm_bytes(request.mm_features)):
            return
        if self._taken + size > self._max_bytes:
            raise RequestError(
                "queue_full",
                f"{size} bytes of embeddings do not fit: other requests hold {self._taken} of "
                f"{self._max_bytes}",
            )
        first = request.request_id << INDEX_BITS
        self._requests[request.request_id] = size, set(range(first, first + request.params.n))
        self._taken += size

    def fork(self, forked: ForkedSequences) -> None:
        """More sequences of a request need its embeddings."""
        _, left = self._requests.get(forked.source >> INDEX_BITS, (0, set()))
        left.update(forked.ids)

    def give_back(self, sequences: Iterable[int]) -> None:
        """Sequences have ended, with embeddings or without."""
        if not self._requests:
            return
        for sequence in sequences:
            size, left = self._requests.get(sequence >> INDEX_BITS, (0, set()))
            left.discard(sequence)
            if size and not left:
                del self._requests[sequence >> INDEX_BITS]
                self._taken -= size

    def give_back_request(self, request_id: int) -> None:
        """A request was not queued."""
        size, _ = self._requests.pop(request_id, (0, set()))
        self._taken -= size
