# SPDX-License-Identifier: Apache-2.0
"""Requests of many prompts in the engine process: fed to the engine, answered with one message."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec
import numpy as np

from rtp_llm.engine.deltas import decode_step
from rtp_llm.engine.messages import (
    FINISH_NAN,
    FINISH_PROMPT,
    AddRequest,
    FromEngine,
    PoolColumns,
    RequestError,
    RequestFailed,
    SequenceDelta,
    StepOutput,
)
from rtp_llm.engine.serving import Serving
from rtp_llm.request.add_prompts import AddPrompts

# Prompts of batches are requests of the engine with numbers from here on; clients count from 1.
FIRST_ID = 1 << 55


@dataclass
class _Batch:
    """A request on its way. ``places``: of the prompts in the engine, by their numbers there."""

    request: AddPrompts
    waiting: Iterator[list[int]]
    pooled: list[bytes]
    left: int
    fed: int = 0
    cached: int = 0
    queued: float = 0.0
    places: dict[int, int] = field(default_factory=dict)


_Ending: TypeAlias = tuple[_Batch, int]  # and how it ended


class PromptBatches:
    """Gives the engine at most ``window`` prompts at a time, from all batches in turn.

    So a request of thousands of prompts fills neither the engine's queue nor delays a short one.
    """

    def __init__(self, engine: Serving, window: int) -> None:
        self._engine, self._window = engine, window
        self._batches: dict[int, _Batch] = {}  # by request_id
        self._unfed: deque[_Batch] = deque()
        self._owners: dict[int, _Batch] = {}  # by the number of a prompt in the engine
        self._numbers = itertools.count(FIRST_ID)

    def add(self, request: AddPrompts) -> None:
        """Take a request."""
        count = len(request.lengths) // 4
        batch = _Batch(request, request.prompts(), [b""] * count, count)
        self._batches[request.request_id] = batch
        self._unfed.append(batch)

    @property
    def waiting(self) -> bool:
        """Whether `feed` has something to do."""
        return bool(self._unfed)

    def abort(self, sequences: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Stop the batches among ``sequences``; returns the others."""
        if not self._batches:
            return [*sequences]
        for request_id, _ in sequences:
            if batch := self._batches.get(request_id):
                self._drop(batch)
        return [each for each in sequences if each[0] < FIRST_ID]

    def feed(self) -> list[FromEngine]:
        """Give the engine prompts while it takes some; returns failures."""
        failed: list[FromEngine] = []
        while self._unfed and len(self._owners) < self._window:
            batch = self._unfed.popleft()
            prompt = next(batch.waiting, None)
            if prompt is None:
                continue
            self._unfed.append(batch)
            try:
                self._add(batch, prompt)
            except RequestError as error:
                if error.kind == "queue_full" and self._owners:
                    batch.waiting = itertools.chain([prompt], batch.waiting)
                    return failed
                failed.append(self._fail(batch, error))
        return failed

    def _add(self, batch: _Batch, prompt: list[int]) -> None:
        request, number = batch.request, next(self._numbers)
        self._engine.add(
            AddRequest(
                request_id=number,
                prompt_token_ids=prompt,
                params=request.params,
                extra_key=request.extra_key,
                tenant=request.tenant,
                tenant_weight=request.tenant_weight,
                second_text=request.second_text(batch.fed),
            )
        )
        batch.places[number] = batch.fed
        batch.fed += 1
        self._owners[number] = batch

    def take(self, outputs: Sequence[FromEngine]) -> Sequence[FromEngine]:
        """What the client is sent of a step: batches that are complete instead of their prompts."""
        if not self._owners:
            return outputs
        return [each for output in outputs for each in self._take(output)]

    def _take(self, output: FromEngine) -> Iterator[FromEngine]:
        if isinstance(output, RequestFailed) and (batch := self._owners.get(output.request_id)):
            yield self._fail(batch, RequestError(output.kind, output.message))
            return
        if not isinstance(output, StepOutput) or not output.num_rows:
            yield output
            return
        own = np.frombuffer(output.request_ids, np.int64) >= FIRST_ID
        if not own.any():
            yield output
            return
        ended = [
            ending
            for number, delta in decode_step(output)
            if number >= FIRST_ID and (batch := self._owners.pop(number, None))
            for ending in self._collect(batch, batch.places.pop(number), delta)
        ]
        if own.all():
            yield _ended(ended, output)
            return
        yield _without_vectors(output)
        if ended:
            yield _ended(ended)

    def _collect(self, batch: _Batch, place: int, delta: SequenceDelta) -> Iterator[_Ending]:
        """Take the end of a prompt; the end of its batch, if that is one."""
        batch.left -= 1
        batch.cached += delta.cached_tokens
        batch.queued = max(batch.queued, delta.queue_seconds)
        if delta.error is not None:
            self._drop(batch)
            yield batch, FINISH_NAN
            return
        batch.pooled[place] = delta.pooled or b""
        if not batch.left:
            del self._batches[batch.request.request_id]
            yield batch, FINISH_PROMPT

    def _fail(self, batch: _Batch, error: RequestError) -> RequestFailed:
        self._drop(batch)
        request_id = batch.request.request_id
        return RequestFailed(request_id=request_id, kind=error.kind, message=error.message)

    def _drop(self, batch: _Batch) -> None:
        """Forget a batch, and stop what of it is in the engine."""
        self._batches.pop(batch.request.request_id, None)
        if batch in self._unfed:
            self._unfed.remove(batch)
        for number in batch.places:
            self._owners.pop(number, None)
        if batch.places:
            self._engine.abort([(number, 0) for number in batch.places])
        batch.places.clear()


def _ended(ended: Sequence[_Ending], step: StepOutput | None = None) -> StepOutput:
    """The ends of batches, as the rows of a step; ``step``: whose other figures it has."""
    rows, batches = len(ended), [batch for batch, _ in ended]
    ids = np.array([batch.request.request_id for batch in batches], np.int64).tobytes()
    values = [b"".join(batch.pooled) if finish == FINISH_PROMPT else b"" for batch, finish in ended]
    columns = PoolColumns(
        request_ids=ids,
        sizes=np.array([len(each) // 4 for each in values], np.int32).tobytes(),
        values=b"".join(values),
    )
    return StepOutput(
        num_rows=rows,
        request_ids=ids,
        indexes=bytes(4 * rows),
        tokens=np.full(rows, -1, np.int32).tobytes(),
        num_tokens=bytes(4 * rows),
        finish=bytes(finish for _, finish in ended),
        cached_tokens=np.array([batch.cached for batch in batches], np.int32).tobytes(),
        queue_seconds=np.array([batch.queued for batch in batches], np.float32).tobytes(),
        pooled=columns if rows else None,
        num_sequences=step.num_sequences if step else 0,
        batch_tokens=step.batch_tokens if step else 0,
        seconds=step.seconds if step else 0.0,
    )


def _without_vectors(output: StepOutput) -> StepOutput:
    """A step without what was collected of it. Rows of collected prompts have no stream in the
    client, which skips them."""
    pooled = output.pooled
    if pooled is None or (np.frombuffer(pooled.request_ids, np.int64) < FIRST_ID).any():
        return output
    return msgspec.structs.replace(output, pooled=None)
