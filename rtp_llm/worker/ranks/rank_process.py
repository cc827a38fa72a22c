# SPDX-License-Identifier: Apache-2.0
"""The process of a rank other than 0: makes its worker, then executes the steps of rank 0.

Its first argument is the file descriptor of the pipe to the process of rank 0; the first message
there is a Start. A thread receives messages, so that rank 0 never waits to send one.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from rtp_llm.bound_child import end_with_parent
from rtp_llm.worker.forked_sequences import ForkedSequences
from rtp_llm.worker.ranks.rank_messages import (
    ConnectorMessage,
    Ended,
    Failure,
    LogLine,
    Received,
    Start,
    Steps,
)
from rtp_llm.worker.ranks.shared_memory import IDLE, MESSAGES, PART, PLAN, StepMemory
from rtp_llm.worker.ranks.stopped import LOOK_SECONDS, StopWatch

if TYPE_CHECKING:
    from rtp_llm.worker.plan.step_plan import StepPlan
    from rtp_llm.worker.ranks.rank_messages import ToRank
    from rtp_llm.worker.worker import StepHandle, Worker

# How often a process that waits for a step reads the outputs of the last one.
_IDLE_SECONDS = 0.05
_LONG_SECONDS = 3600.0
_PARENT_IS_GONE = 3


@dataclass(frozen=True)
class _Step:
    """`kind` and `agreed` tokens: see StepMemory; `messages`: how many were sent before it."""

    kind: int
    plan: StepPlan | None
    messages: int
    agreed: int


class RankProcess:
    """The loop of the process. `worker` gets the same calls as rank 0's, in the same order."""

    def __init__(self, inbox: Inbox, outbox: Outbox, worker: Worker, place: int) -> None:
        from rtp_llm.worker.plan.reader import PlanReader

        self._inbox, self._outbox = inbox, outbox
        self._worker, self._number = worker, place
        steps, (of_plan, of_steps) = inbox.steps.get()
        self._memory = StepMemory(of_steps, steps.num_workers, steps.spin)
        self._plans = PlanReader(steps.layout, of_plan)
        self._taken, self._step = 0, 0
        self._in_flight = steps.in_flight
        self._ahead: queue.SimpleQueue[_Step] = queue.SimpleQueue()
        self._begun: deque[StepHandle] = deque()  # not sampled

    def run(self) -> None:
        """Execute steps forever."""
        following = self._await_step
        if self._in_flight > 1:  # rank 0 goes on while this one computes
            threading.Thread(target=self._take_ahead, name="plans", daemon=True).start()
            following = self._await_ahead
        pending: StepHandle | None = None
        while True:
            step = following(self._timeout(_IDLE_SECONDS if pending else _LONG_SECONDS))
            begun = None if step is None else self._execute(step)
            if pending is not None:
                pending.read()
            pending = begun
            self._report()

    def _timeout(self, seconds: float) -> float:
        """``seconds``, or less if the connector must be polled earlier."""
        connector = self._worker.connector
        poll = None if connector is None else connector.poll_seconds
        return seconds if poll is None else min(seconds, poll)

    def _report(self) -> None:
        if self._worker.connector is not None:
            for message in self._worker.connector.get_finished():
                self._outbox.send(message)

    def _await_step(self, seconds: float) -> _Step | None:
        """Take the next step; None if none arrived in time."""
        channel = self._memory.channel
        following = channel.await_step(self._step, seconds)
        if following == self._step:
            return None
        self._step = following
        messages, kind, agreed = self._memory.numbers.tolist()
        plan = None
        if kind == PLAN:
            plan = self._plans.read(channel.numbers(self._plans.count))
        channel.take(self._number, following)
        return _Step(kind, plan, messages, agreed)

    def _take_ahead(self) -> None:
        while True:
            step = self._await_step(_LONG_SECONDS)
            if step is not None:
                self._ahead.put(step)

    def _await_ahead(self, seconds: float) -> _Step | None:
        try:
            return self._ahead.get(timeout=seconds)
        except queue.Empty:
            return None

    def _execute(self, step: _Step) -> StepHandle | None:
        """Execute a step; returns the handle of what is sampled but not read yet."""
        self._take_messages(step.messages)
        if step.agreed:
            self._worker.step_with_others(step.agreed, computes=step.plan is not None)
        if step.plan is not None:
            handle = self._worker.execute(step.plan)
            if handle is None:
                return None
            self._begun.append(handle)
            if self._in_flight > 1:
                return None
        elif step.kind == IDLE:
            self._worker.work_idle()
            return None
        elif step.kind in (MESSAGES, PART):
            return None
        if not self._begun:  # another rank's
            return None
        handle = self._begun.popleft()
        handle.sample(None)
        return handle

    def _take_messages(self, sent: int) -> None:
        """Take exactly the messages that were sent before the step was published."""
        while self._taken < sent:
            message = self._inbox.messages.get()
            self._taken += 1
            if isinstance(message, Ended):
                self._worker.end(message.ids, aborted=message.aborted)
            elif isinstance(message, ForkedSequences):
                self._worker.fork(message)
            elif isinstance(message, Received):
                of = message.sequence, message.slot, message.token
                self._worker.receive(*of, message.draft_state)
            elif isinstance(message, ConnectorMessage):
                assert self._worker.connector is not None
                self._worker.connector.handle_message(message.message)
            else:
                self._worker.add(message)


class Inbox(threading.Thread):
    """Reads what rank 0 sends; ends the process when rank 0 is gone."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(daemon=True)
        self.messages: queue.SimpleQueue[ToRank] = queue.SimpleQueue()
        self.steps: queue.SimpleQueue[tuple[Steps, Sequence[int]]] = queue.SimpleQueue()
        self._connection = connection

    def run(self) -> None:
        """Read messages forever."""
        try:
            with socket.socket(fileno=os.dup(self._connection.fileno())) as end:
                while True:
                    message = self._connection.recv()
                    if isinstance(message, Steps):
                        _, descriptors, _, _ = socket.recv_fds(end, 1, 2)
                        self.steps.put((message, descriptors))
                    else:
                        self.messages.put(message)
        except (EOFError, OSError):
            os._exit(_PARENT_IS_GONE)  # a step may hang in the device


class Outbox(logging.Handler):
    """Sends log lines, messages and the exit report; thread-safe."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        """Send a log line; called with the handler's own lock held."""
        self._connection.send(LogLine(record.levelno, record.name, self.format(record)))

    def send(self, message: object) -> None:
        """Send rank 0 a message of the connector."""
        with self.lock:  # type: ignore[union-attr]  # every handler has one
            self._connection.send(ConnectorMessage(message))

    def fail(self, error: BaseException) -> None:
        """Report why nothing can be executed any more."""
        text = str(error) if isinstance(error, (ValueError, OSError)) else ""
        # By its name: importing the class would import torch, which takes seconds.
        by_another = type(error).__name__ == "RankLostError"
        failure = Failure(text or f"{type(error).__name__}: {error}", by_another)
        with self.lock:  # type: ignore[union-attr]
            self._connection.send(failure)


def _end_with(parent: int) -> None:
    """Let the kernel end this process with its parent, even if it is stopped or hangs.

    A stopped parent sends nothing any more; the ranks elsewhere notice that this one ends.
    """
    if not end_with_parent(parent):  # it was gone already
        os._exit(_PARENT_IS_GONE)

    def watch() -> None:
        stop = StopWatch(parent)
        while not stop.look():
            time.sleep(LOOK_SECONDS)
        os._exit(_PARENT_IS_GONE)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _run(process: RankProcess) -> None:
    import torch  # here, because it takes seconds and the process should exist before that

    with torch.inference_mode():
        process.run()


def load_factory(name: str) -> Callable[..., Worker]:
    """The function that "module:function" names."""
    module, _, function = name.partition(":")
    found: Callable[..., Worker] = getattr(importlib.import_module(module), function)
    return found


def main() -> int:
    """Run the process; it ends with the process of rank 0."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they end the first rank, which ends this one
    faulthandler.enable()
    connection = Connection(int(sys.argv[1]))
    start: Start = connection.recv()
    _end_with(start.parent)
    outbox = Outbox(connection)
    logging.basicConfig(level=start.log_level, format="%(message)s", handlers=[outbox])
    inbox = Inbox(connection)
    inbox.start()
    try:
        worker = load_factory(start.factory)(*start.arguments)
        # What was loaded stays; a garbage collection over all of torch would hold up a step.
        gc.freeze()
        _run(RankProcess(inbox, outbox, worker, start.place))
    except Exception as error:
        outbox.fail(error)
        os._exit(1)  # the others must notice it, and not wait for this rank's groups
    return 0


if __name__ == "__main__":
    sys.exit(main())
