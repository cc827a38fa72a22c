# SPDX-License-Identifier: Apache-2.0
"""The HTTP process's end of the fork server."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import ClassVar

import msgspec

from rtp_llm.bound_child import python_path
from rtp_llm.config.settings import Settings
from rtp_llm.interrupts import children_leave_interrupts
from rtp_llm.server.offload.fork_server import (
    MESSAGE_BYTES,
    Ended,
    Fork,
    Forked,
    FromServer,
    Hello,
    Kill,
    Loaded,
    ToServer,
)
from rtp_llm.server.offload.process_link import PrepareLink

START_SECONDS = 120.0
# Seconds to exit after closing, before it is killed.
END_SECONDS = 5.0


class CannotStartError(Exception):
    """The fork server failed to load, or has exited."""


class ForkClient:
    """A fork server, started immediately. Belongs to an event loop."""

    popen: ClassVar[Callable[..., subprocess.Popen[bytes]]] = subprocess.Popen

    def __init__(self, settings: Settings) -> None:
        loop = asyncio.get_running_loop()
        self._loaded: asyncio.Future[Loaded] = loop.create_future()
        self._pids: dict[int, asyncio.Future[int]] = {}
        self._codes: dict[int, asyncio.Future[int]] = {}
        self._numbers = itertools.count()
        # SEQPACKET keeps message boundaries, so that no message is read in parts.
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        with theirs, children_leave_interrupts():
            self._child = type(self).popen(
                [sys.executable, "-m", "rtp_llm.server.offload.fork_server", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=_environment(),
            )
        loop.add_reader(self._socket, self._read)
        hello = Hello(settings.model, settings.chat_template, os.getpid())
        self._socket.send(msgspec.msgpack.encode(hello))

    @property
    def alive(self) -> bool:
        """Whether the server can still fork."""
        return self._socket.fileno() >= 0

    async def loaded(self) -> Loaded:
        """Wait until the server can fork; raises CannotStartError."""
        try:
            async with asyncio.timeout(START_SECONDS):
                loaded = await asyncio.shield(self._loaded)
        except TimeoutError as error:
            raise CannotStartError(f"it takes longer than {START_SECONDS:g} s") from error
        if loaded.error:
            raise CannotStartError(loaded.error)
        return loaded

    async def fork(self) -> PrepareLink:
        """Fork a new process; raises CannotStartError."""
        await self.loaded()
        number, loop = next(self._numbers), asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._socket, [_encode(Fork(number))], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise CannotStartError(str(error)) from error
        pid = self._pids[number] = loop.create_future()
        code = self._codes[number] = loop.create_future()
        link = PrepareLink(ours, code, lambda: self._kill(number))
        try:
            await link.open(await pid)
        except BaseException:
            link.kill()
            raise
        return link

    async def close(self) -> None:
        """Stop the server and all its processes."""
        if not self._loaded.done():
            self._child.kill()
        self._close("it was closed")
        await asyncio.get_running_loop().run_in_executor(None, self._end)

    def _end(self) -> None:
        """Wait until the server has ended its processes."""
        try:
            self._child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def _kill(self, number: int) -> None:
        if self.alive:
            with contextlib.suppress(OSError):
                self._socket.send(_encode(Kill(number)))

    def _read(self) -> None:
        try:
            data = self._socket.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(f"it ended (exit code {self._child.wait()})")
            return
        message = msgspec.msgpack.decode(data, type=FromServer)
        if isinstance(message, Loaded):
            self._loaded.set_result(message)
        elif isinstance(message, Forked):
            _set(self._pids.pop(message.number), message.pid)
        else:
            assert isinstance(message, Ended)
            _set(self._codes.pop(message.number), message.code)

    def _close(self, reason: str) -> None:
        """Close the socket, which makes the server end its processes and exit."""
        if not self.alive:
            return
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        if not self._loaded.done():
            self._loaded.set_result(Loaded(error=reason))
        for pid in self._pids.values():
            if not pid.done():
                pid.set_exception(CannotStartError(reason))
        for code in self._codes.values():
            _set(code, -signal.SIGKILL)
        self._pids, self._codes = {}, {}


def _set(future: asyncio.Future[int], value: int) -> None:
    if not future.done():
        future.set_result(value)


def _encode(message: ToServer) -> bytes:
    return msgspec.msgpack.encode(message)


def _environment() -> dict[str, str]:
    """The parent's environment without its API key, and with this package importable."""
    inherited = {name: value for name, value in os.environ.items() if name != "RTP_LLM_API_KEY"}
    return {**inherited, "PYTHONPATH": python_path()}
