# SPDX-License-Identifier: Apache-2.0
"""One thread that serves all message connections of a worker, however many there are."""

from __future__ import annotations

import asyncio
import socket
import threading
from abc import abstractmethod
from collections.abc import Callable


class LoopConnection(asyncio.Protocol):
    """A connection that the loop serves."""

    @abstractmethod
    def abort(self) -> None:
        """End it now, or once it is made; called on the loop's thread."""


class MessageLoop:
    """An asyncio loop on a thread of its own."""

    def __init__(self, name: str) -> None:
        """Raises RuntimeError if no thread can be started."""
        self._loop = asyncio.new_event_loop()
        # A loop holds its tasks weakly; both are the loop's thread's.
        self._connecting: dict[asyncio.Task[object], LoopConnection] = {}
        self._connections: set[LoopConnection] = set()
        self._lock = threading.Lock()  # guards what follows
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._loop.close()
            raise

    def connect(self, connection: LoopConnection, connected: socket.socket) -> None:
        """Serve a connected socket from now on. Raises RuntimeError once closed."""
        self.post(self._begin, connection, connected)

    def post(self, work: Callable[..., object], *arguments: object) -> None:
        """Call a function on the loop's thread. Raises RuntimeError once closed."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the connections of this worker are closed")
            self._loop.call_soon_threadsafe(work, *arguments)

    def end(self, connection: LoopConnection) -> None:
        """Forget a lost connection; called on the loop's thread."""
        self._connections.discard(connection)

    def close(self) -> None:
        """End all connections, which are notified, and join the thread."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _begin(self, connection: LoopConnection, connected: socket.socket) -> None:
        self._connections.add(connection)
        work = self._loop.create_connection(lambda: connection, sock=connected)
        task = self._loop.create_task(work)
        self._connecting[task] = connection
        task.add_done_callback(self._begun)

    def _begun(self, task: asyncio.Task[object]) -> None:
        connection = self._connecting.pop(task)
        if (error := task.exception()) is not None:
            connection.connection_lost(error if isinstance(error, OSError) else None)

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(self._end_all())
        self._loop.close()

    async def _end_all(self) -> None:
        while self._connections:
            for connection in list(self._connections):
                connection.abort()
            await asyncio.sleep(0)
