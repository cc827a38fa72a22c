# SPDX-License-Identifier: Apache-2.0
"""The fork server: loads the tokenizer once, then forks the processes that prepare bodies.

A process that is killed because of its body is replaced within milliseconds, and all of them share
the memory of the tokenizer. The HTTP process requests each over the socket whose descriptor is the
argument, and receives its exit code there.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import TypeAlias

import msgspec

from rtp_llm.bound_child import end_with_parent
from rtp_llm.server.offload.process import work
from rtp_llm.text.grammar import GrammarError
from rtp_llm.text.grammar.vocabulary import vocabulary_of
from rtp_llm.text.model_files import ModelFilesError
from rtp_llm.text.tokenizer import Tokenizer

# Lower priority than the HTTP process and the engine, whose streams continue.
NICENESS = 5
# The number of messages in the longest body that the event loop prepares itself.
PROBE_MESSAGES = 128
MESSAGE_BYTES = 2**16


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The first message to the fork server: what to load. `parent`: pid that must still exist."""

    model: str
    chat_template: str | None
    parent: int


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """Its first reply. `render_seconds`: for a conversation as long as a short body allows."""

    render_seconds: float = 0.0
    error: str = ""


class Fork(msgspec.Struct, frozen=True, tag=True):
    """Start a process; its socket is sent along. `number`: identifies it from now on."""

    number: int


class Kill(msgspec.Struct, frozen=True, tag=True):
    """Kill a process, if it still exists."""

    number: int


class Forked(msgspec.Struct, frozen=True, tag=True):
    """A process was started."""

    number: int
    pid: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """A process has ended; `code`: as in subprocess, negative for a signal."""

    number: int
    code: int


ToServer: TypeAlias = Fork | Kill
FromServer: TypeAlias = Loaded | Forked | Ended


def main() -> int:
    """Serve until the parent closes the socket, or is gone."""
    # This process ends with its parent; until then it ignores signals meant for the parent.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        return _serve(socket.socket(fileno=int(sys.argv[1])))
    except ConnectionError:
        return 0


def _serve(control: socket.socket) -> int:
    said = control.recv(MESSAGE_BYTES)
    if not said:
        return 0
    hello = msgspec.msgpack.decode(said, type=Hello)
    if not end_with_parent(hello.parent):
        return 0
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The HTTP process has already logged warnings about the folder.
    logging.disable(logging.WARNING)
    try:
        tokenizer = Tokenizer.from_folder(hello.model, hello.chat_template)
    except ModelFilesError as error:
        control.send(msgspec.msgpack.encode(Loaded(error=str(error))))
        return 1
    control.send(msgspec.msgpack.encode(Loaded(_probe(tokenizer))))
    # Prepare the vocabulary for grammars, so that no request pays for it in time and memory.
    with contextlib.suppress(GrammarError):
        vocabulary_of(tokenizer)
    gc.collect()
    # Garbage collection would copy shared pages, and takes seconds with a request's many objects.
    gc.freeze()
    gc.disable()
    return _Forker(control, tokenizer).serve()


class _Forker:
    def __init__(self, control: socket.socket, tokenizer: Tokenizer) -> None:
        self._control, self._tokenizer = control, tokenizer
        self._numbers: dict[int, int] = {}  # by pid
        self._woken, self._wake = socket.socketpair()

    def serve(self) -> int:
        for end in (self._woken, self._wake):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        while True:
            readable, _, _ = select.select([self._control, self._woken], [], [])
            if self._woken in readable:
                self._woken.recv(MESSAGE_BYTES)
                self._reap()
            if self._control in readable:
                data, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 1)
                if not data:
                    return self._end()
                self._obey(msgspec.msgpack.decode(data, type=ToServer), descriptors)

    def _obey(self, message: ToServer, descriptors: list[int]) -> None:
        if isinstance(message, Fork):
            self._fork(message.number, descriptors[0])
            return
        for pid, number in self._numbers.items():
            if number == message.number:
                os.kill(pid, signal.SIGKILL)  # not reaped yet, so the pid is still valid

    def _fork(self, number: int, descriptor: int) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            os.close(descriptor)
            self._numbers[pid] = number
            self._send(Forked(number, pid))
            return
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (self._control, self._woken, self._wake):
                end.close()
            if end_with_parent(parent):
                code = work(socket.socket(fileno=descriptor), self._tokenizer)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)

    def _reap(self) -> None:
        while self._numbers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            self._send(Ended(self._numbers.pop(pid), os.waitstatus_to_exitcode(status)))

    def _end(self) -> int:
        for pid in self._numbers:
            os.kill(pid, signal.SIGKILL)
        for pid in self._numbers:
            os.waitpid(pid, 0)
        return 0

    def _send(self, message: Forked | Ended) -> None:
        self._control.send(msgspec.msgpack.encode(message))


def _probe(tokenizer: Tokenizer) -> float:
    """Time the template on a conversation, in seconds; 0 without a template."""
    if not tokenizer.has_chat_template:
        return 0.0
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": "Hello."} for i in range(PROBE_MESSAGES)]
    began = time.process_time()
    with contextlib.suppress(ValueError):
        tokenizer.apply_chat_template(messages)
    return time.process_time() - began


if __name__ == "__main__":
    sys.exit(main())
