# SPDX-License-Identifier: Apache-2.0
"""The HTTP process's end of a preparation process."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable

from rtp_llm.server.prepare.messages import LENGTHS, MAX_ANSWER_BYTES, Call, frame

# Of the reader's buffer: it takes an answer of megabytes in few pieces.
BUFFER_BYTES = 2**20
# How long a process whose socket closed may take to end, before it is ended.
END_SECONDS = 5.0


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

    def __init__(
        self, sock: socket.socket, code: asyncio.Future[int], kill: Callable[[], None]
    ) -> None:
        """`code`: its exit code, once it has one; `kill` ends it."""
        self.pid = 0
        self._sock = sock
        self._code = code
        self._kill = kill
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None

    async def open(self, pid: int) -> None:
        """The process is there."""
        self.pid = pid
        self._reader, self._writer = await asyncio.open_connection(
            sock=self._sock, limit=BUFFER_BYTES
        )

    @property
    def ended(self) -> bool:
        """Whether the process is known to be gone."""
        return self._code.done()

    async def call(self, call: Call, body: bytes) -> tuple[bytes, bytes]:
        """Head and tail of the answer; raises ProcessDiedError. A cancelled call ends the link."""
        if self._writer is None:
            raise RuntimeError("the link is not open")
        try:
            self._writer.writelines(frame(call, body))
            await self._writer.drain()
            lengths = LENGTHS.unpack(await self._reader.readexactly(LENGTHS.size))
            if sum(lengths) > 2 * MAX_ANSWER_BYTES:
                raise RuntimeError(f"an answer of {lengths} bytes of the preparation process")
            head = await self._reader.readexactly(lengths[0])
            return head, await self._reader.readexactly(lengths[1])
        except (OSError, asyncio.IncompleteReadError) as error:
            raise ProcessDiedError(await self._exit_code()) from error

    async def _exit_code(self) -> int | None:
        """How it ended; its socket is closed a moment before it has."""
        await asyncio.wait({self._code}, timeout=END_SECONDS)
        return self._code.result() if self._code.done() else None

    def kill(self) -> None:
        """End the process at once."""
        if self._writer is not None:
            self._writer.transport.abort()
        else:
            self._sock.close()
        self._kill()
