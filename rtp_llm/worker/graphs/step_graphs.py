# SPDX-License-Identifier: Apache-2.0
"""Steps as graphs of the device: one for each size of batch, replayed with one launch."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from rtp_llm.attention.batch import ForwardBatch
from rtp_llm.terminal.terminal_bar import TerminalBar
from rtp_llm.worker.graphs.capture_session import CaptureSession, NoCaptureMemoryError
from rtp_llm.worker.inputs.graph_sizes import GraphSize
from rtp_llm.worker.plan.step_plan import rows_are_tokens

if TYPE_CHECKING:
    from rtp_llm.device import Device
    from rtp_llm.device.streams import Graph
    from rtp_llm.worker.inputs.graph_inputs import GraphInputs
    from rtp_llm.worker.plan.step_plan import StepPlan

_logger = logging.getLogger("rtp_llm.engine")
_WARM_UPS = 2  # a graph must not capture what a kernel compiles or allocates at its first call
# Steps between two captures that requests wait for: they never notice more than one at a time.
_PAUSE = 64


class StepDrafts(Protocol):
    """What a step does for drafts, apart from the model's layers; row r belongs to token r.

    ``extends``: something is left to do after sampling.
    """

    max_draft_tokens: int
    padding_slot: int
    extends: bool

    def draft_rows(self, batch: ForwardBatch, slots: Tensor, previous: Tensor) -> None:
        """Before the layers: the drafts of sequences in ``slots`` int32 [B]; ``previous`` int32 [B]
        are the tokens before theirs, or names of them."""

    def extend_rows(self, batch: ForwardBatch, slots: Tensor, hidden: Tensor) -> None:
        """After sampling, with the layers' ``hidden`` states [T, hidden]."""


@dataclass(frozen=True)
class Captured:
    """A graph and what it computes.

    ``drafts``: it finds the step's drafts itself, and ``extend`` is the remaining work after
    sampling, if there is any. Otherwise the drafter does all of it eagerly.
    """

    graph: Graph
    hidden: Tensor
    drafts: bool = False
    extend: Graph | None = None

    def replay(self, tokens: int) -> Tensor:
        """Replay the graph; returns rows [tokens, ...] that are valid until the next replay."""
        self.graph.replay()
        return self.hidden[:tokens]


@contextmanager
def no_garbage() -> Iterator[None]:
    """Disable garbage collection inside: it could free another graph, which ends a capture."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class StepGraphs:
    """Replays of a step on batches of the sizes that were captured.

    A batch runs in the smallest size that holds it, unless most of that were padding. Sizes are
    captured by `capture_next`, when there is nothing else to do, or when a batch comes for which
    they are the best; in between a larger captured size serves, or none. Padding touches no cache.
    """

    def __init__(
        self,
        step: Callable[[ForwardBatch], Tensor],
        inputs: GraphInputs,
        device: Device,
        sizes: Sequence[GraphSize],
        bar: TerminalBar | None = None,
        session: CaptureSession | None = None,
        drafts: StepDrafts | None = None,
    ) -> None:
        """`step` gives a row for each token; `sizes` come in the order of `capture_next`.

        `session` belongs to ranks that capture together: a size for which one of them has no memory
        is dropped on all, and other failures raise CaptureError on all.
        With `drafts` the work for drafts is captured too, in steps that decode or verify.
        """
        self._bar = bar or TerminalBar()
        self._session = session or CaptureSession()
        self._step, self._drafts = step, drafts
        self._inputs = inputs
        self._device = device
        self._sizes = sorted(sizes)
        self._waiting = list(sizes)
        self._captured: dict[GraphSize, Captured] = {}
        self._stream = device.new_stream()
        self._pool: object = None
        self._pause = 0
        self._seconds, self._bytes = 0.0, 0

    @property
    def complete(self) -> bool:
        """Whether no size is left to capture."""
        return not self._waiting

    def capture_next(self) -> None:
        """Capture one more size, if there is one left; not while requests run."""
        if self._waiting:
            self._capture_size(self._waiting[0])

    def begin(self, plan: StepPlan) -> Captured | None:
        """Write the plan's numbers for the graph that computes it.

        None when no captured size holds it: it has to run eagerly.
        """
        size = self._size_of(plan)
        if size is None:
            return None
        captured = self._captured[size]
        slots = plan.row_slots[plan.row_cu[:-1]] if captured.drafts else None
        self._inputs.write(plan, size, slots)
        return captured

    def batch(self, plan: StepPlan) -> ForwardBatch:
        """The batch of the plan that was begun last, as it was written."""
        return self._inputs.batch_of(plan)

    def _size_of(self, batch: StepPlan) -> GraphSize | None:
        """The captured size that the batch runs in."""
        if batch.max_seqlen_k > self._inputs.max_seqlen_k:
            return None
        has_prompts = self._drafts is not None and not rows_are_tokens(
            batch.logit_rows, batch.num_tokens
        )
        return self._choose(batch.num_tokens, batch.num_seqs, batch.max_seqlen_q, has_prompts)

    def _choose(
        self, tokens: int, sequences: int, longest: int, has_prompts: bool = False
    ) -> GraphSize | None:
        self._pause = max(0, self._pause - 1)
        for size in self._sizes:
            if not size.holds(tokens, sequences, longest) or not size.pays_for(tokens):
                continue
            if has_prompts and self._is_drafting(size):
                continue
            if size not in self._captured and not self._pause:
                self._capture_size(size)
                self._pause = _PAUSE
            if size in self._captured:
                return size
        return None

    def _capture_size(self, size: GraphSize) -> None:
        """Capture a step of `size`; when memory is short, leave it and all others out."""
        began, before = time.monotonic(), self._device.memory_used()
        total, done = len(self._sizes), len(self._captured)
        self._bar.draw("capturing graphs", done, total, f"{done} of {total}")
        self._waiting.remove(size)
        try:
            made, problem = self._try(size)
        except Exception:
            self._sizes.remove(size)  # it is not tried again
            raise
        finally:
            self._bar.erase()
        if made is not None:
            self._captured[size] = made
        else:
            _logger.warning("no more graphs are captured, memory is short: %s", problem)
            self._sizes = [each for each in self._sizes if each in self._captured]
            self._waiting = []
        self._seconds += time.monotonic() - began
        self._bytes += self._device.memory_used() - before
        if not self._waiting:
            self._report()

    def _try(self, size: GraphSize) -> tuple[Captured | None, str]:
        """The captured step, or why there is no memory for it."""
        try:
            return self._capture_together(size), ""
        except (torch.OutOfMemoryError, NoCaptureMemoryError) as error:  # here, or on another rank
            return None, str(error)

    def _capture_together(self, size: GraphSize) -> Captured:
        """The captured step, once every rank of the session has it."""
        made: Captured | None = None
        failure: Exception | None = None
        try:
            made = self._capture(size)
        except Exception as error:
            failure = error
        self._session.finish_capture_session(failure)
        assert made is not None
        return made

    def _is_drafting(self, size: GraphSize) -> bool:
        """Whether graphs of the size include the work for drafts."""
        return self._drafts is not None and size.is_for_rows(1 + self._drafts.max_draft_tokens)

    def _run(self, size: GraphSize) -> Tensor:
        """The step's rows [T, ...]."""
        batch = self._inputs.batch(size)
        if self._drafts is not None and self._is_drafting(size):
            self._drafts.draft_rows(batch, self._inputs.slots(size), self._inputs.previous(size))
        return self._step(batch)

    def _extend(self, size: GraphSize, hidden: Tensor) -> None:
        assert self._drafts is not None
        self._drafts.extend_rows(self._inputs.batch(size), self._inputs.slots(size), hidden)

    def _is_extending(self, size: GraphSize) -> bool:
        """Whether something is left to do after the sampling."""
        return self._drafts is not None and self._drafts.extends and self._is_drafting(size)

    def _rehearse(self, size: GraphSize) -> None:
        """Run the step once."""
        hidden = self._run(size)
        if self._is_extending(size):
            self._extend(size, hidden)

    def _capture(self, size: GraphSize) -> Captured:
        self._inputs.clear()
        self._stream.wait_stream(self._device.current_stream())
        with self._device.use_stream(self._stream):
            for _ in range(_WARM_UPS):
                self._rehearse(size)
        self._device.synchronize()
        graph = self._device.new_graph(self._pool)
        with no_garbage(), self._session.capture(graph, self._stream):
            hidden = self._run(size)
        self._pool = graph.pool
        drafts = self._is_drafting(size)
        if not self._is_extending(size):
            return Captured(graph, hidden, drafts)
        extend = self._device.new_graph(self._pool)
        with no_garbage(), self._session.capture(extend, self._stream):
            self._extend(size, hidden)
        return Captured(graph, hidden, drafts, extend)

    def _report(self) -> None:
        _logger.info(
            "%d graphs for up to %d tokens of %d sequences: %.1f s, %.0f MiB",
            sum(1 + (each.extend is not None) for each in self._captured.values()),
            max((size.tokens for size in self._captured), default=0),
            max((size.sequences for size in self._captured), default=0),
            self._seconds,
            self._bytes / 2**20,
        )
