# SPDX-License-Identifier: Apache-2.0
"""An engine whose prompts decode workers ask for: computed here, fetched from here."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from rtp_llm.disagg.engine_with_transfers import EngineWithTransfers
from rtp_llm.disagg.rank_messages import SendOrder
from rtp_llm.disagg.wire.messages import (
    Failed,
    Finished,
    Hello,
    Load,
    Prefill,
    Prefilled,
    ToPrefill,
)
from rtp_llm.engine.deltas import decode_step
from rtp_llm.engine.messages import (
    ERROR_MESSAGES,
    INDEX_BITS,
    MAX_REQUEST_ID,
    AddRequest,
    EngineStats,
    FailureKind,
    FromEngine,
    RequestError,
    RequestFailed,
    StepOutput,
)

if TYPE_CHECKING:
    from rtp_llm.disagg.metrics import TransferMetrics
    from rtp_llm.disagg.prefill.listener import DecodeWorker, Listener
    from rtp_llm.disagg.prefill.prompt_sender import PromptSender
    from rtp_llm.engine.engine import Engine
    from rtp_llm.engine.waker import Waker
    from rtp_llm.request.sampling_params import SamplingParams
    from rtp_llm.worker.cache.transfer.pinned_pool import PinnedPool

# The HTTP process counts its requests from 1 up; ours are above all of those.
_FIRST_REQUEST = MAX_REQUEST_ID // 2
_TICK_MILLISECONDS = 100
_MAX_NAME = 2**63 - 1


@dataclass
class _Asked:
    """A prompt of another worker. ``deadline``: nobody wants it after that (monotonic seconds)."""

    name: int
    decode_worker: DecodeWorker
    request_id: int
    tokens: int
    deadline: float
    computed: bool = False
    ended: bool = False

    @property
    def sequence(self) -> int:
        return self.request_id << INDEX_BITS


class PrefillEngine(EngineWithTransfers):
    """Around an engine; serves its HTTP process's requests as well.

    The blocks of a prompt stay until the decode worker says that it has them, its connection ends
    or its patience is over, and neither a copy nor the store reads them any more.
    """

    def __init__(
        self,
        engine: Engine,
        sender: PromptSender,
        listener: Listener,
        waker: Waker,
        metrics: TransferMetrics,
        pool: PinnedPool | None = None,
    ) -> None:
        """If ``pool`` is None, blocks are fetched from where they are."""
        super().__init__(engine)
        self._sender, self._listener = sender, listener
        self._waker, self._metrics, self._pool = waker, metrics, pool
        self._numbers = itertools.count(_FIRST_REQUEST)
        self._asked: dict[int, _Asked] = {}  # by name
        self._by_request: dict[int, _Asked] = {}
        self._told_tokens = 0
        self._decode_workers: set[DecodeWorker] = set()

    # -- as an engine --------------------------------------------------------------------------

    @property
    def descriptors(self) -> Sequence[int]:
        return self._waker.descriptor, self._sender.fileno(), *self._engine.descriptors

    @property
    def patience(self) -> int | None:
        """Deadlines pass and copies end by themselves."""
        waits = self._asked or self._sender.under_way
        return _TICK_MILLISECONDS if waits else self._engine.patience

    def stats(self) -> EngineStats:
        """The engine's metrics, with those of transfers."""
        counts, failures = self._metrics.read()
        counts["writer_queue"] = self._sender.queued
        return msgspec.structs.replace(
            self._engine.stats(), transfers=counts, transfer_failures=failures
        )

    def step(self) -> Sequence[FromEngine]:
        """Handle messages of decode workers, step, and report the results of their prompts."""
        self._waker.clear()
        for decode_worker, message in self._listener.take():
            self._hear(decode_worker, message)
        outputs = self._engine.step()
        for sequence, reason in self._sender.take_failures().items():
            if asked := self._by_request.get(sequence >> INDEX_BITS):
                self._give_up(asked, "store_failed", reason)
        if self._by_request:
            for output in outputs:
                if isinstance(output, StepOutput):
                    self._answer(output)
                elif isinstance(output, RequestFailed) and output.request_id in self._by_request:
                    self._give_up(self._by_request[output.request_id], output.kind, output.message)
        self._watch_deadlines()
        self._release()
        self._sender.deliver()
        self._tell_load()
        return outputs

    def close(self) -> None:
        """End connections and threads; for tests, a process just ends."""
        self._listener.close()
        self._sender.close()

    # -- decode workers ------------------------------------------------------------------------

    def _hear(self, decode_worker: DecodeWorker, message: ToPrefill | None) -> None:
        match message:
            case Hello():
                self._decode_workers.add(decode_worker)
                decode_worker.send(Load(waiting_tokens=self._told_tokens))
            case None:
                self._decode_workers.discard(decode_worker)
                for lost in [
                    each for each in self._asked.values() if each.decode_worker is decode_worker
                ]:
                    if not lost.ended:
                        self._metrics.fail("peer_lost")
                    self._end(lost)
            case Prefill():
                self._begin(decode_worker, message)
            case Finished():
                if asked := self._asked.get(message.name):
                    self._end(asked)

    def _begin(self, decode_worker: DecodeWorker, message: Prefill) -> None:
        if refusal := self._refusal(message):
            self._refuse(decode_worker, message.name, *refusal)
            return
        try:
            self._sender.announce(message.name, message.transport, decode_worker.send)
        except ValueError as error:
            self._refuse(decode_worker, message.name, "invalid", str(error))
            return
        request_id = next(self._numbers)
        asked = _Asked(
            name=message.name,
            decode_worker=decode_worker,
            request_id=request_id,
            tokens=len(message.prompt_token_ids),
            deadline=time.monotonic() + message.patience,
        )
        try:
            self._engine.add(_request(request_id, message))
        except RequestError as error:
            self._sender.forget(message.name)
            self._refuse(decode_worker, message.name, error.kind, error.message)
            return
        tokens = np.array(message.prompt_token_ids, np.int32)
        self._sender.begin(SendOrder(message.name, asked.sequence, tokens, message.extra_key))
        self._asked[message.name] = self._by_request[request_id] = asked
        self._metrics.add(prompts=1)

    def _problem_of(self, message: Prefill) -> str | None:
        """What no decode worker of ours says, and what this side could not bear."""
        if not 0 <= message.name <= _MAX_NAME or message.name in self._asked:
            return f"name={message.name} is out of range or in use"
        if not math.isfinite(message.patience):
            return f"patience={message.patience} is no time"
        if message.params.n > 1 or message.params.prompt_logprobs is not None:
            return "a prompt for another worker has one answer, and no log-probabilities itself"
        return None

    def _refuse(
        self, decode_worker: DecodeWorker, name: int, kind: FailureKind, reason: str
    ) -> None:
        """Its load waits until the decode worker has heard why, and gives it up."""
        self._metrics.fail(kind)
        decode_worker.send(Failed(name=name, kind=kind, message=reason))

    def _refusal(self, message: Prefill) -> tuple[FailureKind, str] | None:
        """Kind and reason of why it is not begun."""
        if problem := self._problem_of(message):
            return "invalid", problem
        if problem := self._pool_problem(message):
            return "queue_full", problem
        return None

    def _pool_problem(self, message: Prefill) -> str | None:
        if self._pool is None:
            return None
        held = (asked.tokens for asked in self._asked.values())
        return self._pool.problem(held, len(message.prompt_token_ids))

    def _answer(self, output: StepOutput) -> None:
        for request_id, delta in decode_step(output):
            asked = self._by_request.get(request_id)
            if asked is None or asked.ended:
                continue
            if delta.error is not None:
                self._give_up(asked, delta.error, ERROR_MESSAGES[delta.error])
                continue
            asked.computed = True
            draft_state = self._sender.computed(asked.sequence)
            asked.decode_worker.send(
                Prefilled(
                    name=asked.name,
                    token=delta.token_ids[0],
                    cached_tokens=delta.cached_tokens,
                    logprobs=delta.logprobs[0] if delta.logprobs else None,
                    draft_state=draft_state,
                )
            )

    def _give_up(self, asked: _Asked, code: str, reason: str) -> None:
        if asked.ended:
            return
        self._metrics.fail(code)
        asked.decode_worker.send(Failed(name=asked.name, kind="internal", message=reason))
        self._end(asked)

    def _end(self, asked: _Asked) -> None:
        """End a prompt that nobody needs any more; its blocks are freed once nothing reads them."""
        if asked.ended:
            return
        asked.ended = True
        if not asked.computed:
            self._engine.abort([(asked.request_id, 0)])
        self._sender.end(asked.name, asked.sequence)

    def _watch_deadlines(self) -> None:
        now = time.monotonic()
        for asked in list(self._asked.values()):
            if not asked.ended and now > asked.deadline:
                self._give_up(asked, "prefill_timeout", "the decode worker's patience is over")

    def _release(self) -> None:
        self._sender.take_released()
        for asked in [each for each in self._asked.values() if each.ended]:
            if self._sender.reads(asked.name, asked.sequence):
                continue
            self._engine.remote_prompts.unpin(asked.sequence)
            del self._asked[asked.name], self._by_request[asked.request_id]

    def _tell_load(self) -> None:
        waiting = sum(each.tokens for each in self._asked.values() if not each.computed)
        if waiting == self._told_tokens:
            return
        self._told_tokens = waiting
        for decode_worker in self._decode_workers:
            decode_worker.send(Load(waiting_tokens=waiting))


def first_token_only(params: SamplingParams) -> SamplingParams:
    """The same settings for an output of one token, which depends on no length limit; nothing is
    drafted after it here."""
    fewest = min(1, params.min_tokens)
    return msgspec.structs.replace(params, max_tokens=1, min_tokens=fewest, speculate=False)


def _request(request_id: int, message: Prefill) -> AddRequest:
    return AddRequest(
        request_id=request_id,
        prompt_token_ids=message.prompt_token_ids,
        params=first_token_only(message.params),
        extra_key=message.extra_key,
        grammar=message.grammar,
        thinking=message.thinking,
        tenant=message.tenant,
        tenant_weight=message.tenant_weight,
    )
