# SPDX-License-Identifier: Apache-2.0
"""Starts Python programs by forking a process that has imported what they import.

A server takes a second of a core to import, an engine two, and a file of tests may start fifty of
them. They are children of the process that asks, with the command lines, descriptors and variables
that `subprocess` would give them. Tests of starting itself do without.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import msgspec

from rtp_llm.bound_child import python_path

# What programs import; not the programs themselves, which run as __main__.
ENGINES = ("rtp_llm.engine.start.build", "rtp_llm.engine.start.rank_worker")
# Programs that start others, which are forked, too.
_STARTERS = {
    "rtp_llm.disagg.process",
    "rtp_llm.engine.process.main",
    "rtp_llm.testing.disagg.prefill_process",
    "rtp_llm.testing.server.fake_server",
    "rtp_llm.testing.server.relaxed_server",
}

_PR_SET_CHILD_SUBREAPER = 36
_MESSAGE_BYTES = 1 << 17
_MAX_DESCRIPTORS = 16
_ROOM = "x" * 4096  # for the command lines of programs
# Begin and end of the memory of those, in what follows the name in /proc/self/stat.
_ARGUMENTS = slice(45, 47)


class Program(msgspec.Struct, frozen=True):
    """`python -m module arguments`; ``descriptors``: their numbers in the process, in the order in
    which they are sent; ``blocked``: signals."""

    module: str
    arguments: Sequence[str]
    environ: Mapping[str, str]
    descriptors: Sequence[int]
    blocked: frozenset[int]
    new_session: bool
    folder: str


class ForkServer:
    """The process that forks; it ends with this one or at `close`."""

    def __init__(self, imports: Sequence[str]) -> None:
        self._end, theirs = _pair()
        self._lock = threading.Lock()
        environ = {"OMP_WAIT_POLICY": "passive", **os.environ, "PYTHONPATH": python_path()}
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), *imports, _ROOM],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env=environ,
            )
        self._wait: Callable[[], object] = process.wait

    @classmethod
    def copy_of_this_process(cls) -> ForkServer:
        """One that has imported what this process has, which must not have begun threads."""
        copy = cls.__new__(cls)
        end, theirs = _pair()
        pid = os.fork()
        if not pid:
            end.close()
            _be(_serve(theirs))
        theirs.close()
        copy._end, copy._wait = end, lambda: os.waitpid(pid, 0)
        copy._lock = threading.Lock()
        return copy

    def start(self, program: Program, descriptors: Sequence[int]) -> int:
        """Start a child process; its pid."""
        with self._lock, _adopting_orphans():
            socket.send_fds(self._end, [msgspec.msgpack.encode(program)], descriptors)
            answer = self._end.recv(_MESSAGE_BYTES)
        if not answer:
            raise RuntimeError("the fork server has ended")
        return int(answer)

    def close(self) -> None:
        """End the process; those that it started go on."""
        self._end.close()
        self._wait()


@cache
def fork_server(*imports: str) -> ForkServer:
    """The one of this process that has imported these modules; it ends with this process."""
    server = ForkServer(imports)
    atexit.register(server.close)
    return server


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@contextlib.contextmanager
def _adopting_orphans() -> Iterator[None]:
    """The child of a child that has ended is this process's child."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0)


def forking_popen(server: ForkServer) -> type[subprocess.Popen[Any]]:
    """`subprocess.Popen` for [sys.executable, "-m", module, ...]."""

    class Popen(subprocess.Popen[Any]):
        def _execute_child(self, args: Any, *given: Any) -> None:
            _, preexec_fn, _, pass_fds, cwd, env, _, _, _, *others = given
            *pipes, _restore, _gid, _gids, _uid, _umask, new_session, _group = others
            python, flag, module, *arguments = args
            assert (python, flag, preexec_fn) == (sys.executable, "-m", None)
            theirs = [
                own if own >= 0 else number for number, own in enumerate(pipes[:1] + pipes[3::2])
            ]
            numbers = sorted(pass_fds)
            program = Program(
                module,
                arguments,
                dict(os.environ if env is None else env),
                [0, 1, 2, *numbers],
                frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
                new_session,
                os.fspath(cwd or os.getcwd()),
            )
            self.pid = server.start(program, [*theirs, *numbers])
            self._child_created = True
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    return Popen


def forking_subprocess(server: ForkServer) -> SimpleNamespace:
    """The module `subprocess`, for those who start engines and ranks with it."""
    return SimpleNamespace(**{**vars(subprocess), "Popen": forking_popen(server)})


# -- in its process --------------------------------------------------------------------------------


def _serve(end: socket.socket) -> Program:
    """Fork as often as the client says, until it ends; returns in each child."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    gc.collect()
    gc.freeze()
    while True:
        message, descriptors, _, _ = socket.recv_fds(end, _MESSAGE_BYTES, _MAX_DESCRIPTORS)
        if not message:
            os._exit(0)
        program = msgspec.msgpack.decode(message, type=Program)
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
    if program.new_session:
        os.setsid()
    os.chdir(program.folder)
    signal.pthread_sigmask(signal.SIG_SETMASK, program.blocked)
    os.environ.clear()
    os.environ.update(program.environ)
    tempfile.tempdir = None  # which they may name
    sys.argv[1:] = program.arguments
    _take_name([sys.executable, "-m", program.module, *program.arguments])


def _take_name(words: Sequence[str]) -> None:
    """Have this command line in /proc."""
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = (int(each) for each in stat[_ARGUMENTS])
    line = "".join(f"{word}\0" for word in words).encode()[: end - begin - 1]
    ctypes.memmove(begin, line.ljust(end - begin, b"\0"), end - begin)


def _be(program: Program) -> NoReturn:
    if program.module in _STARTERS:
        _start_others_by_forks()
    sys.modules.pop(program.module, None)  # it may have been imported, but has not run
    runpy.run_module(program.module, run_name="__main__", alter_sys=True)
    sys.exit()


def _start_others_by_forks() -> None:
    from rtp_llm.engine.client import launch
    from rtp_llm.worker.ranks import rank_processes

    copy = ForkServer.copy_of_this_process()
    for module in (launch, rank_processes):
        vars(module)["subprocess"] = forking_subprocess(copy)
    if http := sys.modules.get("rtp_llm.server.offload.fork_client"):
        http.ForkClient.popen = forking_popen(copy)


def main() -> None:
    """The program: imports, forks, and is then what was asked for."""
    descriptor, *imports, _ = sys.argv[1:]
    for name in imports:
        importlib.import_module(name)
    _be(_serve(socket.socket(fileno=int(descriptor))))


if __name__ == "__main__":
    main()
