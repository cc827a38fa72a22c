# SPDX-License-Identifier: Apache-2.0
"""The HTTP process's end of a preparation process."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable

from rtp_llm.server.offload.wire import LENGTHS, MAX_ANSWER_BYTES, Call, frame

# Size of the read buffer, so that an answer of megabytes arrives in few pieces.
BUFFER_BYTES = 2**20
# Seconds for a process to exit after its socket closed, before it is killed.
END_SECONDS = 5.0


class ProcessDiedError(Exception):
    """The process ended; `out_of_memory`: because an allocation failed."""

    def __init__(self, code: int | None) -> None:
        how = f"exit code {code}"
        if code is not None and code < 0:
            how = signal.Signals(-code).name
        super().__init__(f"the preparation process ended ({how})")
        # How libraries end that cannot report a failed allocation to their caller.
        self.out_of_memory = code == -signal.SIGABRT


class PrepareLink:
    """A link to one process, for one call at a time. Belongs to an event loop."""

    def __init__(
        self, sock: socket.socket, code: asyncio.Future[int], kill: Callable[[], None]
    ) -> None:
        """`code`: resolves to the exit code of the process; `kill` ends it."""
        self.pid = 0
        self._sock = sock
        self._code = code
        self._kill = kill
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None

    async def open(self, pid: int) -> None:
        """Connect to the process, now that it was forked as ``pid``."""
        self.pid = pid
        self._reader, self._writer = await asyncio.open_connection(
            sock=self._sock, limit=BUFFER_BYTES
        )

    @property
    def ended(self) -> bool:
        """Whether the process is known to be gone."""
        return self._code.done()

    async def call(self, call: Call, body: bytes) -> tuple[bytes, bytes]:
        """Send a call; returns head and tail of the answer. Cancelling it closes the link.

        Raises:
            ProcessDiedError: the process ended.
        """
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
        """Wait for the exit code; the socket closes a moment before the process ends."""
        await asyncio.wait({self._code}, timeout=END_SECONDS)
        return self._code.result() if self._code.done() else None

    def kill(self) -> None:
        """Kill the process at once."""
        if self._writer is not None:
            self._writer.transport.abort()
        else:
            self._sock.close()
        self._kill()
