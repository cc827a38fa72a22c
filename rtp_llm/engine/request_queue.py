# SPDX-License-Identifier: Apache-2.0
"""Admission of requests to the scheduler; a request with a grammar waits until it is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from rtp_llm.engine.messages import AddRequest, RequestError, RequestFailed
from rtp_llm.engine.uncompiled import Uncompiled, UncompiledRequests

if TYPE_CHECKING:
    from rtp_llm.engine.admission import Admission
    from rtp_llm.engine.open_sequences import OpenSequences
    from rtp_llm.engine.prompt_inputs import EmbeddingBudget
    from rtp_llm.engine.step_metrics import StepMetrics
    from rtp_llm.worker.grammar.library import GrammarLibrary, Matcher
    from rtp_llm.worker.heads.logits_processor import LogitsProcessor


class RequestQueue:
    """Checks and queues requests. Belongs to the engine's thread."""

    def __init__(
        self,
        admission: Admission,
        sequences: OpenSequences,
        metrics: StepMetrics,
        library: GrammarLibrary | None,
        embeddings: EmbeddingBudget,
    ) -> None:
        """``library`` is None if there are no grammars."""
        self._admission, self._sequences, self._metrics = admission, sequences, metrics
        self._embeddings = embeddings
        most = admission.limits.max_queued
        self._uncompiled = None if library is None else UncompiledRequests(library, most)

    @property
    def uncompiled(self) -> int:
        """The number of requests that wait for their grammar."""
        return 0 if self._uncompiled is None else len(self._uncompiled)

    @property
    def descriptors(self) -> Sequence[int]:
        """As Serving's."""
        return () if self._uncompiled is None else (self._uncompiled.waker.descriptor,)

    @property
    def timeout_ms(self) -> int | None:
        """As Serving's."""
        return None if self._uncompiled is None else self._uncompiled.timeout_ms

    def add(self, request: AddRequest, processors: Sequence[LogitsProcessor]) -> Sequence[int]:
        """Queue a request, or let it wait for its grammar; returns the seeds of its sequences.

        Raises:
            RequestError: invalid (it can never run; says the numbers) or queue_full.
        """
        self._admission.check(request)
        self._embeddings.take(request)
        try:
            return self._add(request, processors)
        except BaseException:
            self._embeddings.give_back_request(request.request_id)
            raise

    def _add(self, request: AddRequest, processors: Sequence[LogitsProcessor]) -> Sequence[int]:
        grammar = None
        if request.grammar is not None and self._uncompiled is not None:
            compilation = self._uncompiled.compile(request.grammar)
            if not compilation.ready:
                self._uncompiled.check_room(request)
                seeds = self._admission.seeds_for(request)
                new = Uncompiled(request, processors, seeds, compilation)
                self._uncompiled.add(new)
                return seeds
            grammar = self._uncompiled.result(compilation)
        return self._queue(request, processors, None, grammar)

    def fork(
        self,
        source: int,
        ids: Sequence[int],
        last_tokens: Sequence[int],
        seeds: Sequence[int] | None,
    ) -> Sequence[int]:
        """See Engine.fork."""
        forked, constraints = self._admission.fork(source, ids, last_tokens, seeds)
        self._sequences.fork(forked, constraints)
        return forked.seeds

    def _queue(
        self,
        request: AddRequest,
        processors: Sequence[LogitsProcessor],
        seeds: Sequence[int] | None,
        grammar: Matcher | None,
    ) -> Sequence[int]:
        new = self._admission.queue(request, processors, seeds)
        self._metrics.prompt_tokens += len(new.prompt)
        self._sequences.add(new, grammar, request.thinking)
        return new.seeds

    def queue_compiled(self, abort: Callable[[Sequence[int]], None]) -> list[RequestFailed]:
        """Queue the requests whose grammar is compiled; returns those that cannot be queued.

        ``abort`` is called with sequences that were aborted before they were queued.
        """
        failed: list[RequestFailed] = []
        if not self._uncompiled:
            return failed
        for each in self._uncompiled.take_ready():
            try:
                grammar = self._uncompiled.result(each.compilation)
                self._queue(each.request, each.processors, each.seeds, grammar)
            except RequestError as error:
                self._embeddings.give_back_request(each.request.request_id)
                failed.append(failure(each.request.request_id, error))
            else:
                abort(sorted(each.aborted))
        return failed

    def abort(self, ids: Iterable[int]) -> None:
        """Abort sequences that still wait here."""
        if self._uncompiled:
            self._uncompiled.abort(ids)

    def wait(self) -> None:
        """Wait briefly for a grammar to be compiled; for times when there is nothing else to do."""
        if self._uncompiled:
            self._uncompiled.wait()


def failure(request_id: int, error: RequestError) -> RequestFailed:
    """The message to the client about a request that was refused or given up."""
    return RequestFailed(request_id=request_id, kind=error.kind, message=error.message)
