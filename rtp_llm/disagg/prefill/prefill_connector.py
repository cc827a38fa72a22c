# SPDX-License-Identifier: Apache-2.0
"""The scheduler side of a prefill worker: computes prompts that decode workers request."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from rtp_llm.disagg.prefill.group_sends import GroupSends
from rtp_llm.disagg.prefill.prompt_sender import PromptSender
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
from rtp_llm.engine.kv_connector import KvConnector
from rtp_llm.engine.messages import (
    ERROR_MESSAGES,
    INDEX_BITS,
    MAX_REQUEST_ID,
    AddRequest,
    EngineOutput,
    EngineStats,
    FailureKind,
    RequestError,
    RequestFailed,
    StepOutput,
)

if TYPE_CHECKING:
    from rtp_llm.disagg.metrics import TransferMetrics
    from rtp_llm.disagg.prefill.listener import DecodeWorker, Listener
    from rtp_llm.engine.engine import Engine
    from rtp_llm.engine.waker import Waker
    from rtp_llm.request.sampling_params import SamplingParams
    from rtp_llm.worker.cache.transfer.pinned_pool import PinnedPool
    from rtp_llm.worker.ranks.rank_group import RankGroup

# The HTTP process counts its requests from 1 up; ours are above all of those.
_FIRST_REQUEST = MAX_REQUEST_ID // 2
_TICK_MILLISECONDS = 100
_MAX_NAME = 2**63 - 1


@dataclass
class _RemotePrompt:
    """A prompt of another worker, which does not need it after ``deadline`` (monotonic seconds)."""

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


class PrefillConnector(KvConnector):
    """Adds requests of decode workers to an engine, which serves its HTTP process's as well.

    The blocks of a prompt stay until the decode worker says that it has them, its connection ends
    or its time is over, and neither a copy nor the store reads them any more.
    """

    def __init__(
        self,
        engine: Engine,
        group: RankGroup,
        listener: Listener,
        waker: Waker,
        metrics: TransferMetrics,
        pool: PinnedPool | None = None,
    ) -> None:
        """``group``: the ranks' PromptSender. If ``pool`` is None, blocks are fetched from where
        they are."""
        own = group.own
        assert isinstance(own, PromptSender)
        self._engine, self._sender, self._listener = engine, own, listener
        self._sends = GroupSends(group)
        self._waker, self._metrics, self._pool = waker, metrics, pool
        self._numbers = itertools.count(_FIRST_REQUEST)
        self._prompts: dict[int, _RemotePrompt] = {}  # by name
        self._by_request: dict[int, _RemotePrompt] = {}
        self._sent_load = 0  # tokens
        self._decode_workers: set[DecodeWorker] = set()

    # -- steps ---------------------------------------------------------------------------------

    @property
    def descriptors(self) -> Sequence[int]:
        return self._waker.descriptor, self._sender.fileno()

    @property
    def timeout_ms(self) -> int | None:
        """Deadlines pass and copies end by themselves."""
        waits = self._prompts or self._sender.writer.in_progress
        return _TICK_MILLISECONDS if waits else None

    def add_stats(self, stats: EngineStats) -> EngineStats:
        counts, failures = self._metrics.read()
        counts["writer_queue"] = self._sender.queued
        return msgspec.structs.replace(stats, transfers=counts, transfer_failures=failures)

    def begin_step(self) -> Sequence[EngineOutput]:
        """Handle messages of decode workers."""
        self._waker.clear()
        for decode_worker, message in self._listener.take():
            self._receive(decode_worker, message)
        return ()

    def end_step(self, outputs: Sequence[EngineOutput]) -> Sequence[EngineOutput]:
        """Report the results of decode workers' prompts."""
        self._sends.poll()
        for sequence, reason in self._sends.take_failures().items():
            if prompt := self._by_request.get(sequence >> INDEX_BITS):
                self._give_up(prompt, "store_failed", reason)
        if self._by_request:
            for output in outputs:
                if isinstance(output, StepOutput):
                    self._answer(output)
                elif isinstance(output, RequestFailed) and output.request_id in self._by_request:
                    self._give_up(self._by_request[output.request_id], output.kind, output.message)
        self._watch_deadlines()
        self._release()
        self._sends.deliver()
        self._send_load()
        return ()

    def close(self) -> None:
        self._listener.close()
        self._sender.close()

    # -- decode workers ------------------------------------------------------------------------

    def _receive(self, decode_worker: DecodeWorker, message: ToPrefill | None) -> None:
        match message:
            case Hello():
                self._decode_workers.add(decode_worker)
                decode_worker.send(Load(waiting_tokens=self._sent_load))
            case None:
                self._decode_workers.discard(decode_worker)
                for orphan in [
                    each for each in self._prompts.values() if each.decode_worker is decode_worker
                ]:
                    if not orphan.ended:
                        self._metrics.fail("peer_lost")
                    self._end(orphan)
            case Prefill():
                self._begin(decode_worker, message)
            case Finished():
                if prompt := self._prompts.get(message.name):
                    self._end(prompt)

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
        prompt = _RemotePrompt(
            name=message.name,
            decode_worker=decode_worker,
            request_id=request_id,
            tokens=len(message.prompt_token_ids),
            deadline=time.monotonic() + message.timeout,
        )
        try:
            self._engine.add(_request(request_id, message))
        except RequestError as error:
            self._sender.forget(message.name)
            self._refuse(decode_worker, message.name, error.kind, error.message)
            return
        tokens = np.array(message.prompt_token_ids, np.int32)
        self._sends.start(SendOrder(message.name, prompt.sequence, tokens, message.extra_key))
        self._prompts[message.name] = self._by_request[request_id] = prompt
        self._metrics.add(prompts=1)

    def _problem_of(self, message: Prefill) -> str | None:
        """What no decode worker of ours says, and what this side could not bear."""
        if not 0 <= message.name <= _MAX_NAME or message.name in self._prompts:
            return f"name={message.name} is out of range or in use"
        if not math.isfinite(message.timeout):
            return f"timeout={message.timeout} is no time"
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
        held = (prompt.tokens for prompt in self._prompts.values())
        return self._pool.problem(held, len(message.prompt_token_ids))

    def _answer(self, output: StepOutput) -> None:
        for request_id, delta in decode_step(output):
            prompt = self._by_request.get(request_id)
            if prompt is None or prompt.ended:
                continue
            if delta.error is not None:
                self._give_up(prompt, delta.error, ERROR_MESSAGES[delta.error])
                continue
            prompt.computed = True
            draft_state = self._sender.computed(prompt.sequence)
            prompt.decode_worker.send(
                Prefilled(
                    name=prompt.name,
                    token=delta.token_ids[0],
                    cached_tokens=delta.cached_tokens,
                    logprobs=delta.logprobs[0] if delta.logprobs else None,
                    draft_state=draft_state,
                )
            )

    def _give_up(self, prompt: _RemotePrompt, code: str, reason: str) -> None:
        if prompt.ended:
            return
        self._metrics.fail(code)
        prompt.decode_worker.send(Failed(name=prompt.name, kind="internal", message=reason))
        self._end(prompt)

    def _end(self, prompt: _RemotePrompt) -> None:
        """End a prompt that nobody needs any more; its blocks are freed once nothing reads them."""
        if prompt.ended:
            return
        prompt.ended = True
        if not prompt.computed:
            self._engine.abort([(prompt.request_id, 0)])
        self._sends.end(prompt.name)

    def _watch_deadlines(self) -> None:
        now = time.monotonic()
        for prompt in list(self._prompts.values()):
            if not prompt.ended and now > prompt.deadline:
                self._give_up(prompt, "prefill_timeout", "the decode worker waits no longer")

    def _release(self) -> None:
        self._sends.poll()
        for prompt in [each for each in self._prompts.values() if each.ended]:
            if self._sends.take_if_released(prompt.name):
                self._engine.kv_blocks.unpin(prompt.sequence)
                del self._prompts[prompt.name], self._by_request[prompt.request_id]

    def _send_load(self) -> None:
        waiting = sum(each.tokens for each in self._prompts.values() if not each.computed)
        if waiting == self._sent_load:
            return
        self._sent_load = waiting
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
