"""The HTTP process's end of a preparation process: the child and the socket to it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import msgspec

import rtp_llm
from rtp_llm.interrupts import children_leave_interrupts
from rtp_llm.server.prepare.messages import LENGTHS, MAX_ANSWER_BYTES, Call, Hello, Loaded, frame

START_SECONDS = 120.0
# Of the reader's buffer: it takes an answer of megabytes in few pieces.
BUFFER_BYTES = 2**20
# How long a process whose socket closed may take to end, before it is ended.
END_SECONDS = 5.0
_END_POLL_SECONDS = 0.005


class ProcessDiedError(Exception):
    """The process ended; `out_of_memory`: because it could not have more."""

    def __init__(self, code: int | None) -> None:
        how = f"exit code {code}"
        if code is not None and code < 0:
            how = signal.Signals(-code).name
        super().__init__(f"the preparation process ended ({how})")
        # What libraries do that cannot tell their caller about it.
        self.out_of_memory = code == -signal.SIGABRT


class PrepareLink:
    """One process. Belongs to an event loop; one call at a time."""

    def __init__(self, child: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self._child = child
        self._sock = sock
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @classmethod
    def spawn(cls) -> PrepareLink:
        """Start the process without waiting."""
        ours, theirs = socket.socketpair()
        with theirs, children_leave_interrupts():
            child = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "rtp_llm.server.prepare.process",
                    str(theirs.fileno()),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=_environment(),
            )
        return cls(child, ours)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._child.pid

    @property
    def opened(self) -> bool:
        """Whether `open` was called."""
        return self._writer is not None

    async def open(self, hello: Hello) -> Loaded:
        """Wait until it has loaded the tokenizer; raises ProcessDiedError, TimeoutError."""
        self._reader, self._writer = await asyncio.open_connection(
            sock=self._sock, limit=BUFFER_BYTES
        )
        async with asyncio.timeout(START_SECONDS):
            head, _ = await self._exchange(hello, b"")
        return msgspec.msgpack.decode(head, type=Loaded)

    async def call(self, call: Call, body: bytes) -> tuple[bytes, bytes]:
        """Head and tail of the answer; raises ProcessDiedError. A cancelled call ends the link."""
        return await self._exchange(call, body)

    async def _exchange(self, head: Hello | Call, tail: bytes) -> tuple[bytes, bytes]:
        reader, writer = self._reader, self._writer
        if reader is None or writer is None:
            raise RuntimeError("the link is not open")
        try:
            writer.writelines(frame(head, tail))
            await writer.drain()
            lengths = LENGTHS.unpack(await reader.readexactly(LENGTHS.size))
            if sum(lengths) > 2 * MAX_ANSWER_BYTES:
                raise RuntimeError(f"an answer of {lengths} bytes of the preparation process")
            return await reader.readexactly(lengths[0]), await reader.readexactly(lengths[1])
        except (OSError, asyncio.IncompleteReadError) as error:
            raise ProcessDiedError(await self._exit_code()) from error

    async def _exit_code(self) -> int | None:
        """How it ended; its socket is closed a moment before it has."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + END_SECONDS
        while self._child.poll() is None and loop.time() < deadline:
            await asyncio.sleep(_END_POLL_SECONDS)
        return self._child.returncode

    def kill(self) -> asyncio.Future[int]:
        """End the process at once; gives what can be awaited, its exit code."""
        if self._writer is not None:
            self._writer.transport.abort()
        else:
            self._sock.close()
        if self._child.poll() is None:
            self._child.kill()
        # Giving back its memory takes the system a while.
        return asyncio.get_running_loop().run_in_executor(None, self._child.wait)


def _environment() -> dict[str, str]:
    """The parent's environment without its key, with this very package importable."""
    root = str(Path(rtp_llm.__file__).parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    inherited = {name: value for name, value in os.environ.items() if name != "RTP_LLM_API_KEY"}
    return {**inherited, "PYTHONPATH": path}
