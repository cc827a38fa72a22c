# SPDX-License-Identifier: Apache-2.0
"""Engine processes of several ranks with the interface of one Engine, for a caller that steps."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import zmq

from rtp_llm.config.refusals import get_refusal
from rtp_llm.engine.admission import check_request
from rtp_llm.engine.client.engine_link import EngineLink
from rtp_llm.engine.client.liveness import Liveness
from rtp_llm.engine.client.meeting_folder import MeetingFolder
from rtp_llm.engine.client.rank_failures import LOOK_SECONDS, LOOKS, first_cause, names_cause
from rtp_llm.engine.client.rank_metrics import all_ready
from rtp_llm.engine.limits import EngineLimits
from rtp_llm.engine.messages import (
    AbortRequest,
    AddRequest,
    EngineDeadError,
    EngineFatal,
    EngineLog,
    EngineReady,
    EngineStartError,
    FromEngine,
    PromptLogprobs,
    RequestError,
    RequestFailed,
    Shutdown,
    StepOutput,
    Wake,
    log_line,
)
from rtp_llm.worker.ranks.stopped import STOPPED, StopWatch

if TYPE_CHECKING:
    from rtp_llm.config.settings import Settings
    from rtp_llm.worker.heads.logits_processor import LogitsProcessor

_POLL_MILLISECONDS = 100
_CLOSE_SECONDS = 5.0


class RankEngines:
    """Starts `data_parallel_size` processes, and waits until all are ready.

    Requests go to the rank with fewest open sequences. Raises EngineStartError when a rank cannot
    start; when one dies, falls silent or hangs in a step later, EngineDeadError from then on.
    """

    def __init__(self, settings: Settings, module: str = "rtp_llm.engine.process.main") -> None:
        """`module` is what the processes run (a test has its own)."""
        size = settings.data_parallel_size
        self._meeting = MeetingFolder(size, settings.ranks_per_engine)
        self._links: list[EngineLink] = []
        self._poller = zmq.Poller()
        self._step_timeout = settings.step_timeout
        self._numbers = itertools.count(1)
        self._open: dict[tuple[int, int], int] = {}  # sequence -> rank
        self._loads = [0] * size
        self._ready: list[EngineReady | None] = [None] * size
        self._fatal: list[str | None] = [None] * size
        self._failure: str | None = None
        self._signs = [Liveness() for _ in range(size)]
        self._stops: list[StopWatch] = []
        self.ready = self._start(settings, module)
        self._limits = EngineLimits(
            max_model_len=self.ready.max_model_len,
            vocab_size=self.ready.vocab_size,
            max_running=settings.max_running_requests,
            max_queued=settings.max_queued_requests,
            eos_token_ids=self.ready.eos_token_ids,
            embedding_width=self.ready.embedding_width,
            mrope=self.ready.mrope,
            tasks=self.ready.tasks,
            pooling=self.ready.pooling,
            vector_size=self.ready.vector_size,
            matryoshka=self.ready.matryoshka,
            scored=self.ready.scored,
        )

    # -- life ----------------------------------------------------------------------------------

    def _start(self, settings: Settings, module: str) -> EngineReady:
        size, timeout = settings.data_parallel_size, settings.start_timeout
        deadline = time.monotonic() + timeout
        try:
            for rank in range(size):
                membership = self._meeting.membership(rank) if size > 1 else None
                self._links.append(EngineLink(module, settings, membership))
                self._poller.register(self._links[-1].inbox, zmq.POLLIN)
                self._stops.append(StopWatch(self._links[-1].process.pid))
            while any(ready is None for ready in self._ready):
                self._receive()
                if time.monotonic() > deadline:
                    self._die(f"the ranks were not ready after start_timeout={timeout:.15g} s")
        except BaseException as error:
            self.close()
            if isinstance(error, EngineDeadError):
                raise EngineStartError(str(error)) from error
            raise
        return all_ready([ready for ready in self._ready if ready is not None])

    @property
    def alive(self) -> bool:
        """No rank has died."""
        return self._failure is None

    @property
    def has_idle_work(self) -> bool:
        """The processes do theirs by themselves."""
        return False

    def work_idle(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """End the processes."""
        for link in self._links:
            link.send(Shutdown())
        deadline = time.monotonic() + (_CLOSE_SECONDS if self.alive else 0.0)
        for link in self._links:
            link.end(deadline - time.monotonic())
        self._links.clear()
        self._meeting.remove()

    # -- requests ------------------------------------------------------------------------------

    def add(self, request: AddRequest, processors: Sequence[LogitsProcessor] = ()) -> None:
        """As Engine.add; logits processors, which live in this process, are refused."""
        self._check_alive()
        if processors:
            row = get_refusal("ranks", "logits_processors of several ranks")
            raise RequestError("invalid", row.message)
        check_request(request, self._limits)
        n, rank = request.params.n, self._loads.index(min(self._loads))
        if self._loads[rank] + n > self._limits.max_running + self._limits.max_queued:
            raise RequestError("queue_full", f"all ranks have {self._loads[rank]} sequences")
        number = next(self._numbers)
        for other, link in enumerate(self._links):
            here = msgspec.structs.replace(request, number=number)
            link.send(here if other == rank else Wake(number=number))
        self._loads[rank] += n
        self._open.update({(request.request_id, index): rank for index in range(n)})

    def abort(self, sequences: Sequence[tuple[int, int]]) -> None:
        """As Engine.abort."""
        self._check_alive()
        for sequence in sequences:
            rank = self._close_sequence(sequence)
            if rank is not None:
                self._links[rank].send(AbortRequest(sequences=[sequence]))

    def step(self) -> list[StepOutput | PromptLogprobs]:
        """What some of the ranks produced; waits for it while sequences are open.

        Raises:
            EngineDeadError: a rank has died.
            RequestError: a rank gave a request up.
        """
        self._check_alive()
        outputs: list[StepOutput | PromptLogprobs] = []
        while self._open and not outputs:
            outputs = self._receive()
        return outputs

    def _close_sequence(self, sequence: tuple[int, int]) -> int | None:
        rank = self._open.pop(sequence, None)
        if rank is not None:
            self._loads[rank] -= 1
        return rank

    # -- what the ranks say --------------------------------------------------------------------

    def _receive(self) -> list[StepOutput | PromptLogprobs]:
        self._poller.poll(_POLL_MILLISECONDS)
        now = time.monotonic()
        outputs: list[StepOutput | PromptLogprobs] = []
        for rank, link in enumerate(self._links):
            self._signs[rank].look(now)
            for message in link.receive():
                self._signs[rank].receive(message, now)
                self._take(rank, message, outputs)
        self._check_stopped(now)
        if any(self._fatal) or not all(link.process.running for link in self._links):
            self._find_cause()
        if all(self._ready):
            self._check_signs(now)
        return outputs

    def _check_stopped(self, now: float) -> None:
        for rank, stop in enumerate(self._stops):
            if stop.look(now):
                self._die(f"rank {rank}: the engine process {STOPPED}")

    def _check_signs(self, now: float) -> None:
        for rank, signs in enumerate(self._signs):
            if reason := signs.failure(now, self._step_timeout):
                self._die(f"rank {rank}: {reason}")

    def _take(
        self, rank: int, message: FromEngine, outputs: list[StepOutput | PromptLogprobs]
    ) -> None:
        match message:
            case StepOutput():
                self._close_finished(message)
                outputs.append(message)
            case PromptLogprobs() if (message.request_id, 0) in self._open:
                outputs.append(message)
            case EngineReady():
                self._ready[rank] = message
            case EngineLog():
                text = f"rank {rank}: {message.message}"
                log_line(msgspec.structs.replace(message, message=text))
            case EngineFatal():
                self._fatal[rank] = message.message
            case RequestFailed():
                raise RequestError(message.kind, message.message)

    def _close_finished(self, output: StepOutput) -> None:
        finished = np.flatnonzero(np.frombuffer(output.finish, np.uint8))
        requests = np.frombuffer(output.request_ids, np.int64)[finished]
        indexes = np.frombuffer(output.indexes, np.int32)[finished]
        for sequence in zip(requests.tolist(), indexes.tolist(), strict=True):
            self._close_sequence(sequence)

    def _find_cause(self) -> None:
        """A rank is dead: find the reason, which the first to report may not know."""
        for _ in range(LOOKS):
            # The last message of a process may arrive a moment after its end.
            ended = [not link.process.running for link in self._links]
            self._poller.poll(int(LOOK_SECONDS * 1000))
            self._read_exit_reports(ended)
            if names_cause(self._fatal):
                break
        self._die(first_cause(self._fatal))

    def _read_exit_reports(self, ended: Sequence[bool]) -> None:
        for rank, link in enumerate(self._links):
            for message in link.receive():
                if isinstance(message, EngineFatal):
                    self._fatal[rank] = message.message
            if ended[rank] and self._fatal[rank] is None:
                self._fatal[rank] = link.process.exit_report()

    def _die(self, reason: str) -> None:
        self._failure = reason
        for link in self._links:
            link.process.kill()
        self._check_alive()

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise EngineDeadError(self._failure)
