"""A worker whose steps are executed by other processes, on plans in shared memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from rtp_llm.worker.heads.sampler import Sampled
from rtp_llm.worker.new_sequences import NewSequences
from rtp_llm.worker.plan import StepPlan
from rtp_llm.worker.shared.memory import StepMemory, default_spin
from rtp_llm.worker.shared.messages import Ended, Failure, Ready, Start
from rtp_llm.worker.shared.plan import PlanLayout
from rtp_llm.worker.worker import StepHandle, StepOutputs, Worker

if TYPE_CHECKING:
    from rtp_llm._runtime import Batch, Scheduler

_LOOK_SECONDS = 0.1  # between two looks whether the processes live


class WorkerLostError(RuntimeError):
    """A worker process has ended or failed; says which and why."""


class ProcessWorker(Worker):
    """Starts ``num_workers`` processes that execute the plans of ``scheduler``.

    The scheduler must have been made with ``shared_batch``. A step costs one counter to hand over,
    whatever the number of processes: nothing is serialised but what concerns whole requests. The
    first process answers for all.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        factory: str,
        arguments: tuple[Any, ...] = (),
        *,
        num_workers: int = 1,
        max_rows: int,
        spin: int | None = None,
    ) -> None:
        """``factory``: see Start; ``spin``: microseconds, None: by the number of cores.

        Raises:
            WorkerLostError: a process could not make its worker.
        """
        _check_drafts(scheduler)
        spin = default_spin(num_workers + 1) if spin is None else spin
        descriptor = os.memfd_create("rtp_llm_steps")
        self._memory = StepMemory(descriptor, max_rows, num_workers, spin)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pipes: list[Connection] = []
        for number in range(num_workers):
            start = Start(
                number=number,
                num_workers=num_workers,
                factory=factory,
                arguments=arguments,
                layout=PlanLayout.of(scheduler),
                plan_descriptor=scheduler.shared_memory[0],
                step_descriptor=descriptor,
                max_rows=max_rows,
                spin=spin,
            )
            self._start(start)
        try:
            ready = [self._ready(number) for number in range(num_workers)]
        except BaseException:
            self.close()
            raise
        self._overlaps = all(ready)

    def _start(self, start: Start) -> None:
        ours, theirs = Pipe()
        command = [sys.executable, "-m", "rtp_llm.worker.shared.worker_process"]
        descriptors = (theirs.fileno(), start.plan_descriptor, start.step_descriptor)
        process = subprocess.Popen([*command, str(theirs.fileno())], pass_fds=descriptors)
        theirs.close()
        self._processes.append(process)
        self._pipes.append(ours)
        ours.send(start)

    def _ready(self, number: int) -> bool:
        while not self._pipes[number].poll(_LOOK_SECONDS):
            self._check_alive()
        message = self._receive(number)
        assert isinstance(message, Ready)
        return message.overlaps

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.wait()
        self._pipes.clear()
        self._processes.clear()

    # -- as a worker ---------------------------------------------------------------------------

    @property
    def overlaps(self) -> bool:
        return self._overlaps

    @property
    def in_process(self) -> bool:
        return False

    def add(self, sequences: NewSequences) -> None:
        self._tell(sequences)

    def end(self, ids: Iterable[int], *, aborted: bool) -> None:
        self._tell(Ended(tuple(ids), aborted))

    def _tell(self, message: NewSequences | Ended) -> None:
        try:
            for pipe in self._pipes:
                pipe.send(message)
        except OSError:
            self._check_alive()
            raise
        self._memory.messages[0] += 1

    def execute(self, plan: StepPlan | None, *, more: bool = False) -> StepHandle | None:
        if plan is None:
            return None
        channel = self._memory.channel
        channel.publish(cast("Batch", plan))  # whichever plan this is, the scheduler made it
        return _ProcessStep(self, channel.published, plan)

    def release_plan(self) -> None:
        channel = self._memory.channel
        self._await(channel.await_taken, channel.published)

    def read(self, step: int) -> tuple[Sampled, StepOutputs | None]:
        """The answer to a step: its tokens, and the outputs where there is more than tokens."""
        self._await(self._memory.channel.await_finished, step)
        side = step & 1
        count, broken, more, _ = self._memory.answers[side].tolist()
        sampled = Sampled(self._memory.tokens[side, :count].copy(), broken, None)
        outputs = self._receive(0) if more else None
        assert outputs is None or isinstance(outputs, StepOutputs)
        return sampled, outputs

    # -- processes that end ----------------------------------------------------------------------

    def _await(self, wait: Callable[[int, float], bool], step: int) -> None:
        while not wait(step, _LOOK_SECONDS):
            self._check_alive()

    def _receive(self, number: int) -> object:
        try:
            message: object = self._pipes[number].recv()
        except (EOFError, OSError) as error:
            raise self._lost(number) from error
        if isinstance(message, Failure):
            raise WorkerLostError(f"worker {number}: {message.reason}")
        return message

    def _check_alive(self) -> None:
        for number, process in enumerate(self._processes):
            if process.poll() is not None:
                pipe = self._pipes[number]
                while pipe.poll():  # its last words
                    self._receive(number)
                raise self._lost(number)

    def _lost(self, number: int) -> WorkerLostError:
        return WorkerLostError(
            f"worker {number} ended with exit code {self._processes[number].wait()}"
        )


def _check_drafts(scheduler: Scheduler) -> None:
    """Raise ValueError for a scheduler that takes drafts."""
    if drafts := scheduler.config.max_draft_tokens:
        raise ValueError(
            f"max_draft_tokens={drafts} is not supported by workers in other processes: their "
            "answers have one token for each sequence. Run the worker in the engine's process, "
            "or set it to 0"
        )


class _ProcessStep:
    def __init__(self, worker: ProcessWorker, step: int, plan: StepPlan) -> None:
        self._worker, self._step = worker, step
        self._sizes = plan.num_seqs, plan.num_tokens

    def sample(self, previous: NDArray[np.int32] | None) -> None:
        return

    def read(self) -> StepOutputs:
        sampled, outputs = self._worker.read(self._step)
        return outputs or StepOutputs(*self._sizes, sampled)
