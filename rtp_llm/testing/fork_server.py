# SPDX-License-Identifier: Apache-2.0
"""Starts the processes of engines and ranks by forking one that has imported torch.

An import of torch takes seconds of a core, and a file of tests may start fifty such processes.
They are children of this process as those that `subprocess` starts. The tests of starting itself
do without.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import os
import pickle
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from rtp_llm.bound_child import python_path

_PR_SET_CHILD_SUBREAPER = 36
_MESSAGE_BYTES = 1 << 17
_MAX_DESCRIPTORS = 16
# What those programs import; not the programs themselves.
_IMPORTS = ("rtp_llm.engine.start.build", "rtp_llm.engine.start.rank_worker")


@dataclass(frozen=True)
class Program:
    """`python -m module arguments`, started by ``parent``; ``descriptors``: their numbers in the
    process, in the order in which they are sent."""

    module: str
    arguments: Sequence[str]
    environ: Mapping[str, str]
    descriptors: Sequence[int]
    parent: int


class ForkServer:
    """The process that forks; it ends with this one or at `close`."""

    def __init__(self) -> None:
        self._end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        environ = {"OMP_WAIT_POLICY": "passive", **os.environ, "PYTHONPATH": python_path()}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env=environ,
            )

    def start(self, program: Program, descriptors: Sequence[int]) -> int:
        """Start a child process; its pid."""
        with self._lock, _adopting_orphans():
            socket.send_fds(self._end, [pickle.dumps(program)], descriptors)
            answer = self._end.recv(_MESSAGE_BYTES)
        if not answer:
            raise RuntimeError("the fork server has ended")
        return int(answer)

    def close(self) -> None:
        """End the process; those that it started go on."""
        self._end.close()
        self._process.wait()


@contextlib.contextmanager
def _adopting_orphans() -> Iterator[None]:
    """The child of a child that has ended is this process's child."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0)


def forking_subprocess(server: ForkServer) -> SimpleNamespace:
    """The module `subprocess`, for those who start engines and ranks with it."""

    class Popen(subprocess.Popen[bytes]):
        def _execute_child(
            self,
            args: Any,
            executable: Any,
            preexec_fn: Any,
            close_fds: Any,
            pass_fds: Sequence[int],
            cwd: Any,
            env: Mapping[str, str],
            startupinfo: Any,
            creationflags: Any,
            shell: Any,
            p2cread: int,
            *others: Any,
        ) -> None:
            python, flag, module, *arguments = args
            assert (python, flag, cwd, preexec_fn) == (sys.executable, "-m", None, None)
            numbers = [0, 1, 2, *pass_fds]
            program = Program(module, arguments, env, numbers, os.getpid())
            self.pid = server.start(program, [p2cread, *numbers[1:]])
            self._child_created = True
            os.close(p2cread)

    return SimpleNamespace(**{**vars(subprocess), "Popen": Popen})


# -- in its process --------------------------------------------------------------------------------


def _serve(end: socket.socket) -> Program:
    """Fork as often as the client says, until it ends; returns in each child."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(end, _MESSAGE_BYTES, _MAX_DESCRIPTORS)
        if not message:
            os._exit(0)
        program: Program = pickle.loads(message)
        reader, writer = os.pipe()
        middle = os.fork()
        if not middle:
            middle, child = os.getpid(), os.fork()
            if child:
                os.write(writer, str(child).encode())
                os._exit(0)
            for other in (reader, writer):
                os.close(other)
            end.close()
            _take_place(program, descriptors, middle)
            return program
        for other in (*descriptors, writer):
            os.close(other)
        os.waitpid(middle, 0)  # the child is the client's from here on
        with open(reader, "rb") as pid:
            end.send(pid.read())


def _take_place(program: Program, descriptors: Sequence[int], middle: int) -> None:
    """Have the parent, the environment and the descriptors that the program shall have."""
    while os.getppid() == middle:
        time.sleep(0.0005)
    above = max(*program.descriptors, *descriptors) + 1
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD, above) for each in descriptors]
    for each in descriptors:
        os.close(each)
    for each, wanted in zip(moved, program.descriptors, strict=True):
        os.dup2(each, wanted)
        os.close(each)
    os.environ.clear()
    os.environ.update(program.environ)
    sys.argv[1:] = program.arguments


def main() -> None:
    """The program: imports, forks, and is then what was asked for."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # as children_leave_interrupts
    for name in _IMPORTS:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as end:
        program = _serve(end)
    runpy.run_module(program.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
