"""The process of one worker: waits for steps, executes them, answers.

Its first argument is the file descriptor of the pipe to the engine's process; the first message
there is a Start. A thread takes the messages, so that the engine never waits to send one.
"""

from __future__ import annotations

import importlib
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

from rtp_llm.worker.new_sequences import NewSequences
from rtp_llm.worker.shared.memory import StepMemory
from rtp_llm.worker.shared.messages import Ended, Failure, Ready, Start
from rtp_llm.worker.shared.plan import SharedPlan
from rtp_llm.worker.worker import StepHandle, Worker

# How often a process without work looks whether graphs are to be captured.
_IDLE_SECONDS = 0.05


class WorkerProcess:
    """The loop."""

    def __init__(self, connection: Connection, start: Start, worker: Worker) -> None:
        self._connection, self._number, self._worker = connection, start.number, worker
        self._memory = StepMemory(
            start.step_descriptor, start.max_rows, start.num_workers, start.spin
        )
        self._plan = SharedPlan(start.layout, start.plan_descriptor)
        self._messages: queue.SimpleQueue[NewSequences | Ended] = queue.SimpleQueue()
        self._taken = 0
        threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self) -> None:
        try:
            while True:
                self._messages.put(self._connection.recv())
        except (EOFError, OSError):
            os._exit(0)  # the engine is gone; a step may hang in the device

    def run(self) -> None:
        """Execute steps for ever."""
        channel = self._memory.channel
        step, pending = 0, None
        while True:
            following = channel.await_step(step, 0.0 if pending else _IDLE_SECONDS)
            if following == step:
                if pending is not None:
                    self._answer(step, pending)
                    pending = None
                elif self._worker.has_idle_work:
                    self._worker.work_idle()
                continue
            self._take_messages()
            self._plan.read_numbers(channel)
            handle = self._worker.execute(self._plan)
            channel.take(self._number, following)
            if pending is not None:
                self._answer(step, pending)
            step, pending = following, handle

    def _take_messages(self) -> None:
        """Those that were sent before the step was published."""
        sent = int(self._memory.messages[0])
        while self._taken < sent:
            message = self._messages.get()
            self._taken += 1
            if isinstance(message, NewSequences):
                self._worker.add(message)
            else:
                self._worker.end(message.ids, aborted=message.aborted)

    def _answer(self, step: int, handle: StepHandle) -> None:
        outputs = handle.read()
        if self._number == 0:  # all workers come to the same tokens
            side, count = step & 1, len(outputs.tokens)
            sampled = outputs.sampled
            prompts = outputs.scores or outputs.broken or outputs.pooled
            more = bool(prompts or (sampled and sampled.logprobs))
            self._memory.tokens[side, :count] = outputs.tokens
            self._memory.answers[side, :3] = count, sampled.broken if sampled else 0, more
            if more:
                self._connection.send(outputs)
        self._memory.channel.finish(self._number, step)


def load_factory(name: str) -> Callable[..., Worker]:
    """The function that "module:function" names."""
    module, _, function = name.partition(":")
    found: Callable[..., Worker] = getattr(importlib.import_module(module), function)
    return found


def main() -> int:
    """Run the process; it ends with the engine's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the engine, which ends this
    connection = Connection(int(sys.argv[1]))
    try:
        start: Start = connection.recv()
        worker = load_factory(start.factory)(*start.arguments)
        process = WorkerProcess(connection, start, worker)
        connection.send(Ready(worker.overlaps))
        process.run()
    except Exception as error:
        connection.send(Failure(f"{type(error).__name__}: {error}"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
