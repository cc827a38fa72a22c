# SPDX-License-Identifier: Apache-2.0
"""The engine: schedule, execute, commit. Token ids in, columns out.

Where the worker overlaps steps, the next one is scheduled and submitted before the tokens of this
one are read: they reach it on the device, and only their values arrive late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from rtp_llm.engine.admission import Admission
from rtp_llm.engine.beams.beam_groups import BeamGroups
from rtp_llm.engine.beams.prepare import prepare_beams
from rtp_llm.engine.columns import error_columns, prompt_logprobs, step_columns
from rtp_llm.engine.kv_blocks import KvBlocks
from rtp_llm.engine.kv_connector import KvConnector, matched_tokens
from rtp_llm.engine.limits import EngineLimits
from rtp_llm.engine.messages import (
    FINISH_NAN,
    INDEX_BITS,
    INDEX_MASK,
    AddRequest,
    EngineOutput,
    EngineStats,
    RequestError,
    RequestFailed,
    StepOutput,
)
from rtp_llm.engine.open_sequences import OpenSequences
from rtp_llm.engine.prompt_inputs import EmbeddingBudget
from rtp_llm.engine.request_queue import RequestQueue, failure
from rtp_llm.engine.serving import Serving
from rtp_llm.engine.step_guard import StepGuard
from rtp_llm.engine.step_metrics import StepMetrics
from rtp_llm.worker.grammar.constraints import Constraints
from rtp_llm.worker.speculative.draft_length import DraftLength, shorten
from rtp_llm.worker.speculative.proposer import NO_DRAFTS, Proposer

if TYPE_CHECKING:
    from rtp_llm._runtime import Scheduler
    from rtp_llm.worker.heads.beam_table import BeamTable
    from rtp_llm.worker.heads.logits_processor import LogitsProcessor
    from rtp_llm.worker.worker import StepHandle, StepOutputs, Worker


class Engine(Serving):
    """Continuous batching with one worker. Not thread-safe, except for ``stats``.

    An exception inside a step leaves the scheduler between two states, so it ends the engine:
    ``step`` raises it, and every later call raises EngineDeadError. After KeyboardInterrupt the
    engine goes on once the sequences that were running are aborted.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        worker: Worker,
        limits: EngineLimits,
        seed: int = 0,
        proposer: Proposer = NO_DRAFTS,
        draft_length: DraftLength | None = None,
        constraints: Constraints | None = None,
        *,
        beams: BeamTable,
    ) -> None:
        """``seed`` is for requests without their own. Without a ``draft_length`` all proposed
        drafts are taken. ``constraints`` are those by which the worker masks logits, None if it
        does not. ``beams`` are those for which the worker selects continuations."""
        self.limits = limits
        self._constraints = constraints or Constraints(0, 0, ())
        self._scheduler, self._worker, self._proposer = scheduler, worker, proposer
        self._draft_length = draft_length or DraftLength(proposer.max_draft_tokens)
        self._guard, self._metrics = StepGuard(), StepMetrics(scheduler)
        embeddings = EmbeddingBudget(limits.max_mm_bytes)
        self._sequences = sequences = OpenSequences(worker, proposer, self._constraints, embeddings)
        admission = Admission(scheduler, limits, seed, proposer, constraints, beams)
        library = self._constraints.library
        self._requests = RequestQueue(admission, sequences, self._metrics, library, embeddings)
        self.kv_blocks = KvBlocks(scheduler, worker, sequences, self._unblock)
        self._connector: KvConnector | None = None
        self._beams = BeamGroups(scheduler, self._constraints, beams)
        self._blocked = False  # nothing can run before a transfer ends
        self._in_flight: deque[StepHandle] = deque()  # submitted and not committed

    def add(
        self,
        request: AddRequest,
        processors: Sequence[LogitsProcessor] = (),
    ) -> Sequence[int]:
        """Queue a request; returns the seeds of its sequences.

        A request with a grammar that is not compiled yet is queued by a later step, which returns a
        RequestFailed instead of raising the errors below.

        Raises:
            RequestError: invalid (it can never run; says the numbers) or queue_full.
            EngineDeadError: a step failed before.
        """
        self._guard.check()
        if request.beam_search is not None:
            return self._add_beams(request, processors)
        seeds = self._requests.add(request, processors)
        if self._connector is not None:
            self._connector.add_request(request, seeds)
        return seeds

    def _add_beams(
        self, request: AddRequest, processors: Sequence[LogitsProcessor]
    ) -> Sequence[int]:
        # A KV connector, which loads for sequences without siblings, is not notified.
        queued, search = prepare_beams(request, self.limits, self._constraints)
        search.overlaps &= self._worker.orders_beams and self._connector is None and not processors
        self._beams.add(request.request_id << INDEX_BITS, search)
        try:
            return self._requests.add(queued, processors)
        except BaseException:
            self._beams.remove(request.request_id)
            raise

    def fork(
        self,
        sequence: tuple[int, int],
        indexes: Sequence[int],
        *,
        last_tokens: Sequence[int] = (),
        seeds: Sequence[int] | None = None,
    ) -> Sequence[int]:
        """Continue a sequence, (request_id, index), in more sequences of its request.

        Sequence ``indexes[i]`` begins with the prompt and the output that `step` has returned so
        far, and ends with ``last_tokens[i]`` instead of the last token if they are given; stop
        rules are not applied to that token. Settings, grammar and limits are the request's. Full
        blocks of the KV cache are shared. What it shares is not returned again. A preempted
        sequence can be continued, too: its forks wait like it does.

        Returns the seeds of the new sequences: ``seeds``, or else new ones.

        Raises:
            RequestError: invalid (there is no such sequence, it has no output yet, its last token
                is still computed, an index is in use, or the grammar forbids a last token) or
                queue_full.
            EngineDeadError: a step failed before.
        """
        self._guard.check()
        request, index = sequence
        wrong = [each for each in indexes if not 0 <= each <= INDEX_MASK]
        if wrong:
            raise RequestError("invalid", f"fork: indexes {wrong} are not from 0 to {INDEX_MASK}")
        ids = [request << INDEX_BITS | each for each in indexes]
        with torch.inference_mode():
            made = self._requests.fork(request << INDEX_BITS | index, ids, last_tokens, seeds)
        self._metrics.refresh()
        return made

    def abort(self, sequences: Sequence[tuple[int, int]]) -> None:
        """Stop sequences, (request_id, index) each, at any state; unknown ones are ignored."""
        self._guard.check()
        self._abort([request << INDEX_BITS | index for request, index in sequences])

    def _abort(self, ids: Sequence[int], *, not_finite: bool = False) -> None:
        if self._beams:
            ids = self._beams.all_beams(ids)
        self._end(ids, not_finite=not_finite)

    def _end(self, ids: Sequence[int], *, not_finite: bool = False) -> None:
        self._requests.abort(ids)
        self._scheduler.abort(ids, not_finite=not_finite)
        self._sequences.abort(ids)
        if self._connector is not None:
            self._connector.request_finished(ids)
        self._metrics.refresh()

    def _unblock(self) -> None:
        self._blocked = False
        self._metrics.refresh()

    def connect(self, connector: KvConnector) -> None:
        """Let ``connector`` load and save blocks from now on; once, before the first request."""
        self._connector = connector
        self._scheduler.set_connector(matched_tokens(connector))

    @property
    def connector(self) -> KvConnector | None:
        """The connector, if there is one."""
        return self._connector

    @property
    def has_work(self) -> bool:
        """Whether a sequence is waiting or running, here or at a worker that this one must step
        with, the outputs of a step are still to come, or a transfer has not ended."""
        return self._has_steps or (self._connector is not None and self._connector.has_work)

    @property
    def _has_steps(self) -> bool:
        waiting = self._scheduler.has_work or self._requests.uncompiled > 0
        return waiting or bool(self._in_flight) or self._worker.awake

    @property
    def descriptors(self) -> Sequence[int]:
        of_connector = () if self._connector is None else self._connector.descriptors
        return *of_connector, *self._requests.descriptors

    @property
    def timeout_ms(self) -> int | None:
        of_connector = None if self._connector is None else self._connector.timeout_ms
        return self._requests.timeout_ms if of_connector is None else of_connector

    @property
    def can_go_on(self) -> bool:
        return self._has_steps and not self._blocked

    @property
    def has_idle_work(self) -> bool:
        transfers = self._connector is not None and self._connector.has_work
        return self._worker.has_idle_work and not transfers

    def work_idle(self) -> None:
        self._worker.work_idle()

    @property
    def alive(self) -> bool:
        """Whether no step has failed."""
        return self._guard.alive

    def step(self) -> Sequence[EngineOutput]:
        """Finish one step; returns what it produced, the step's own columns last; empty without
        work.

        If steps overlap, the next one is on the device when this returns. Also empty, with
        ``can_go_on`` false, if everything that is left waits for other workers.
        """
        self._guard.check()
        return self._guarded_step() if self._connector is None else self._connected(self._connector)

    def _connected(self, connector: KvConnector) -> list[EngineOutput]:
        """A step, and the connector's work before and after it."""
        arrived = connector.begin_step()
        outputs = self._guarded_step()
        failed = [each.request_id for each in outputs if isinstance(each, RequestFailed)]
        if failed:
            connector.request_finished([request << INDEX_BITS for request in failed])
        for allocation in self.kv_blocks.take_allocations():
            connector.update_state_after_alloc(allocation)
        return [*arrived, *outputs, *connector.end_step(outputs)]

    def _guarded_step(self) -> list[EngineOutput]:
        if not self._has_steps:
            return []
        with self._guard.watch(), self._metrics.timed(), torch.inference_mode():
            outputs = self._step()
        if not self._scheduler.has_work:
            self._metrics.refresh()
        return outputs

    def _step(self) -> list[EngineOutput]:
        if self._guard.interrupted:
            self._in_flight.clear()
            self._draft_length.forget()
            self._guard.forget_steps(self._scheduler)
        failed = self._requests.queue_compiled(self._abort)
        if self._beams:
            self._beams.all_beams(each.request_id << INDEX_BITS for each in failed)
        while len(self._in_flight) < self._worker.in_flight:
            begun = self._submit(None)
            if begun is None:
                break
            self._in_flight.append(begun)
            if self._worker.in_flight == 1:
                begun.sample(None)
                failed += self._end_failed()
        if not self._in_flight:
            self._nothing_submitted()
            return [*failed]
        self._blocked = False
        step = self._in_flight.popleft()
        if self._worker.in_flight > 1:  # the stages have their next work before this one waits
            step.sample(None)
            failed += self._end_failed()
        # The device gets its next work before anybody waits for what it does now.
        following = self._submit(step) if self._worker.overlaps else None
        if following is not None:
            self._in_flight.append(following)
        outputs = step.read()
        broken = [self._end_broken(each) for each in outputs.broken]
        outputs, beams = self._commit(outputs)
        if following is not None:
            following.sample(outputs.row_tokens)
        columns = step_columns(self._scheduler.result, outputs, self._metrics.elapsed())
        failed += self._end_failed()
        return [*failed, *prompt_logprobs(outputs.prompts), *broken, *beams, columns]

    def _submit(self, in_flight: StepHandle | None) -> StepHandle | None:
        """Schedule a step and give it to the worker; None if nothing can run now."""
        self._worker.release_plan()
        limit = self._draft_length.choose()
        drafts = None
        if limit:
            drafts = self._proposer.propose(self._scheduler.batch if in_flight else None)
            drafts = self._constraints.cut(shorten(drafts, limit))
        plan = self._scheduler.batch if self._scheduler.schedule(drafts) else None
        if self._connector is not None and (evicted := self.kv_blocks.take_evicted()) is not None:
            self._connector.blocks_evicted(evicted)
        self._draft_length.submitted(plan)
        more = self._scheduler.has_work or self._requests.uncompiled > 0
        return self._worker.execute(plan, more=more)

    def _nothing_submitted(self) -> None:
        """Called when only other workers had work, or a transfer must end first."""
        if self._worker.stopped:
            return
        if self._requests.uncompiled and not self._worker.awake:
            self._blocked = True
            self._requests.wait()
        if not self._scheduler.has_work:
            return
        self._blocked = True
        state = self._scheduler.stats()
        if not state["receiving"] and not state["held"]:
            raise RuntimeError(f"the scheduler cannot go on: {state}")

    def _commit(self, outputs: StepOutputs) -> tuple[StepOutputs, Sequence[StepOutput]]:
        """Returns what clients may see of the outputs, and the messages of beam searches."""
        self._scheduler.commit(outputs.tokens)
        result = self._scheduler.result
        self._draft_length.committed(result)
        self._metrics.count(outputs.sampled, result, self._draft_length.limit)
        found: Sequence[StepOutput] = ()
        over: Sequence[int] = ()
        if self._beams:
            outputs, found, over = self._beams.advance(outputs, result)
        self._sequences.observe(result)
        if self._connector is not None:
            ended = result.ids[np.flatnonzero(result.finish)]
            if len(ended):
                self._connector.request_finished(ended.tolist())
        if over:
            self._end(over)
        return outputs, found

    def _end_broken(self, request: Iterable[int]) -> StepOutput:
        """End the sequences of a request whose prompt gave NaN or infinity."""
        sequences = sorted(request)
        self._abort(sequences, not_finite=True)
        self._metrics.broken += len(sequences)
        return error_columns(sequences, FINISH_NAN)

    def _end_failed(self) -> list[RequestFailed]:
        """End the requests that cannot follow their grammar any longer."""
        failed = []
        for sequence, reason in self._constraints.take_failures().items():
            request = sequence >> INDEX_BITS
            self._abort([request << INDEX_BITS | index for index in range(1 << INDEX_BITS)])
            failed.append(failure(request, RequestError("invalid", f"grammar: {reason}")))
        return failed

    def stats(self) -> EngineStats:
        """The latest metrics; may be called from any thread, also while a step runs."""
        stats = self._metrics.read()
        return stats if self._connector is None else self._connector.add_stats(stats)

    def check_integrity(self) -> None:
        """Raise when a block of the KV cache is lost or wrongly shared."""
        self._scheduler.check_integrity()
