# SPDX-License-Identifier: Apache-2.0
"""The processes of a model's other ranks, as rank 0 starts, watches and ends them."""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from rtp_llm.bound_child import python_path
from rtp_llm.interrupts import children_leave_interrupts
from rtp_llm.worker.ranks.rank_failure import RankFailure, WorkerLostError
from rtp_llm.worker.ranks.rank_messages import (
    ConnectorMessage,
    Failure,
    LogLine,
    Start,
    Steps,
    ToRank,
)
from rtp_llm.worker.ranks.stopped import LOOK_SECONDS, STOPPED, StopWatch

# The last message of a rank may arrive a little after its end was noticed.
_LAST_WORDS_SECONDS = 1.0


class RankProcesses:
    """Processes of the ranks of this machine, spawned and never forked. They end with this process.

    A thread listens to them: their log lines go to this process's log, and ``rank_failure`` is
    notified when the first of them ends unexpectedly or is stopped. ``on_news`` may be set: that
    thread calls it when the connector of a rank has sent a message.
    """

    def __init__(
        self,
        factory: str,
        arguments: Sequence[tuple[Any, ...]],
        environments: Sequence[Mapping[str, str]],
        names: Sequence[str],
        rank_failure: RankFailure | None = None,
        first: int = 1,
    ) -> None:
        """``factory``: see Start. ``arguments``, ``environments`` and ``names`` (for messages) have
        one entry per rank, from rank ``first`` up."""
        self.rank_failure = rank_failure or RankFailure()
        self._names = dict(enumerate(names, first))
        self.on_news: Callable[[], None] | None = None
        self._news: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._first = first
        self._survivors: dict[int, str] = {}  # reports of ranks that failed because of another one
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pipes: list[Connection] = []
        level = logging.getLogger("rtp_llm").getEffectiveLevel()
        for place, (given, environ) in enumerate(zip(arguments, environments, strict=True)):
            self._spawn(Start(place, factory, given, os.getpid(), level), environ)
        self._watch = threading.Thread(target=self._listen, name="ranks", daemon=True)
        self._watch.start()

    def _spawn(self, start: Start, environ: Mapping[str, str]) -> None:
        ours, theirs = Pipe()
        command = [sys.executable, "-m", "rtp_llm.worker.ranks.rank_process"]
        with children_leave_interrupts():
            process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": python_path(), **environ},
            )
        theirs.close()
        self._processes.append(process)
        self._pipes.append(ours)
        ours.send(start)

    @property
    def pids(self) -> list[int]:
        """Process ids, by rank."""
        return [process.pid for process in self._processes]

    # -- what they are told ----------------------------------------------------------------------

    def notify(self, message: ToRank) -> None:
        """Send ``message`` to all ranks."""
        try:
            for pipe in self._pipes:
                pipe.send(message)
        except OSError as error:
            self.check()
            raise WorkerLostError(f"a rank does not listen: {error}") from error

    def hand_over(self, steps: Steps, descriptors: Sequence[int]) -> None:
        """Let the ranks wait for steps, in the memories of ``descriptors``."""
        for pipe in self._pipes:
            pipe.send(steps)
            with socket.socket(fileno=os.dup(pipe.fileno())) as end:
                socket.send_fds(end, [b"\0"], list(descriptors))

    def take_news(self) -> Iterator[tuple[int, Any]]:
        """Yield each (rank, message) of the ranks' connectors, once."""
        while not self._news.empty():
            yield self._news.get()

    # -- their end -------------------------------------------------------------------------------

    def check(self, seconds: float = 0.0) -> None:
        """Raise WorkerLostError if a rank has failed, or fails within ``seconds``."""
        self.rank_failure.check(seconds)

    def close(self) -> None:
        """End the processes."""
        self.rank_failure.expect()
        for process in self._processes:
            process.kill()  # inside a collective they would notice nothing else
        for process in self._processes:
            process.wait()
        self._watch.join()
        for pipe in self._pipes:
            pipe.close()

    def _listen(self) -> None:
        pipes = dict(enumerate(self._pipes, self._first))
        ends = {rank: os.pidfd_open(pid) for rank, pid in enumerate(self.pids, self._first)}
        stops = {rank: StopWatch(pid) for rank, pid in enumerate(self.pids, self._first)}
        heard = time.monotonic()
        try:
            while ends:
                ready = wait([*pipes.values(), *ends.values()], LOOK_SECONDS)
                heard = time.monotonic() if ready else heard
                for rank in [rank for rank, pipe in pipes.items() if pipe in ready]:
                    if not self._hear(rank, pipes[rank]):
                        del pipes[rank]
                for rank in [rank for rank, end in ends.items() if end in ready]:
                    if rank in pipes:
                        self._read_exit_report(rank, pipes.pop(rank))
                    os.close(ends.pop(rank))
                    if rank not in self._survivors:
                        self.rank_failure.report(f"{self._names[rank]} {self._exit_report(rank)}")
                for rank in [rank for rank in ends if stops[rank].look()]:
                    self.rank_failure.report(f"{self._names[rank]} {STOPPED}")
                    self._processes[rank - self._first].kill()  # the others still wait for it
                silent = time.monotonic() - heard >= _LAST_WORDS_SECONDS
                if self._survivors and (silent or not ends):  # nobody else says anything
                    self.rank_failure.report(next(iter(self._survivors.values())))
        finally:
            for descriptor in ends.values():
                os.close(descriptor)

    def _hear(self, rank: int, pipe: Connection) -> bool:
        """Take one message; returns False if it was the last."""
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            return False
        if isinstance(message, LogLine):
            text = f"{self._names[rank]}: {message.text}"
            logging.getLogger(message.logger).log(message.level, "%s", text)
        elif isinstance(message, ConnectorMessage):
            self._news.put((rank, message.message))
            if self.on_news is not None:
                self.on_news()
        elif isinstance(message, Failure) and message.by_another:
            self._survivors[rank] = f"{self._names[rank]}: {message.reason}"
        elif isinstance(message, Failure):
            self.rank_failure.report(f"{self._names[rank]}: {message.reason}")
        return True

    def _read_exit_report(self, rank: int, pipe: Connection) -> None:
        while pipe.poll(_LAST_WORDS_SECONDS) and self._hear(rank, pipe):
            pass

    def _exit_report(self, rank: int) -> str:
        code = self._processes[rank - self._first].wait()
        if code < 0:
            return f"was ended by signal {signal.Signals(-code).name}"
        return f"ended with exit code {code}"
