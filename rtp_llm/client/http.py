# SPDX-License-Identifier: Apache-2.0
"""An HTTP/1.1 client with streamed responses and persistent connections."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import urllib.parse
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import cast

import httptools

from rtp_llm.net.keepalive import end_with_peer

_CONNECT_SECONDS = 10.0
_PORTS = {"http": 80, "https": 443}


class ConnectError(OSError):
    """No connection could be made: the server has not seen the request."""


class HttpClient:
    """Sends requests to one origin, without a limit on concurrency. Belongs to one event loop."""

    def __init__(
        self, url: str, headers: Mapping[str, str] | None = None, *, verify: bool = True
    ) -> None:
        """``url``: scheme, host, port, and a prefix for the paths of requests. ``headers``: sent
        with every request. ``verify``: check the server's certificate.

        Raises:
            ValueError: the scheme is neither http nor https, or there is no host.
        """
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in _PORTS or not parts.hostname:
            raise ValueError(f"{url!r} is not the address of an HTTP server")
        self._host, self._port = parts.hostname, parts.port or _PORTS[parts.scheme]
        self._path = parts.path.rstrip("/")
        self._tls = _tls(verify) if parts.scheme == "https" else None
        common = {"Host": parts.netloc.rpartition("@")[2], "Accept-Encoding": "identity"}
        self._headers = {**common, **(headers or {})}
        self._idle: list[_Connection] = []

    @contextlib.asynccontextmanager
    async def request(
        self, method: str, path: str, body: bytes = b""
    ) -> AsyncIterator[HttpResponse]:
        """Yield the response once its headers have arrived. Leaving the block before the end of
        the response closes the connection, so that the server stops its work.

        Raises:
            ConnectError: nothing was sent.
            OSError: the connection ended, or the response is not HTTP.
        """
        connection, message = await self._begin(self._message(method, path, body))
        try:
            yield message
        finally:
            if message.is_complete and message.keeps_alive:
                self._idle.append(connection)
            else:
                connection.close()

    def close(self) -> None:
        """Close the idle connections; those in use stay open."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _begin(self, message: bytes) -> tuple[_Connection, HttpResponse]:
        while self._idle:  # the server may just have closed it
            connection = self._idle.pop()
            try:
                return connection, await connection.send(message)
            except ConnectionResetError:
                continue
        connection = await self._connect()
        return connection, await connection.send(message)

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        opening = loop.create_connection(_Connection, self._host, self._port, ssl=self._tls)
        try:
            transport, connection = await asyncio.wait_for(opening, _CONNECT_SECONDS)
        except TimeoutError as error:
            raise ConnectError(f"no connection within {_CONNECT_SECONDS:g} s") from error
        except OSError as error:
            raise ConnectError(error.strerror or str(error)) from error
        end_with_peer(transport.get_extra_info("socket"))
        return connection

    def _message(self, method: str, path: str, body: bytes) -> bytes:
        lines = [f"{method} {self._path}{path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in self._headers.items()]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + body


class HttpResponse:
    """The answer to one request."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        """Header values by lower-case name."""
        self.is_complete = self.keeps_alive = False
        self._chunks: deque[bytes] = deque()
        self._error: OSError | None = None
        self._changed = asyncio.Event()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives; raises OSError if the connection ends before the body."""
        while True:
            while self._chunks:
                yield self._chunks.popleft()
            if self.is_complete:
                return
            await self._next()

    async def read(self) -> bytes:
        """The whole body; raises the same errors as ``chunks``."""
        return b"".join([chunk async for chunk in self.chunks()])

    async def head(self) -> None:
        """Wait for status and headers; raises the same errors as ``chunks``."""
        while not self.status:
            await self._next()

    async def _next(self) -> None:
        if self._error is not None:
            raise self._error
        await self._changed.wait()
        self._changed.clear()

    # -- what the connection reports -----------------------------------------------------------

    def begin(self, status: int, headers: dict[str, str]) -> None:
        """Status and headers have arrived."""
        self.status, self.headers = status, headers
        self._changed.set()

    def feed(self, chunk: bytes) -> None:
        """A part of the body has arrived."""
        self._chunks.append(chunk)
        self._changed.set()

    def end(self, *, keeps_alive: bool) -> None:
        """Mark the response as complete; `keeps_alive`: its connection may be used again."""
        self.is_complete, self.keeps_alive = True, keeps_alive
        self._changed.set()

    def fail(self, error: OSError) -> None:
        """The response failed; nothing more will arrive."""
        if not self.is_complete:
            self._error = error
            self._changed.set()


class _Connection(asyncio.Protocol):
    """The protocol of one connection, which carries one response at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._response: HttpResponse | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}

    async def send(self, message: bytes) -> HttpResponse:
        """Send a request and wait for the head of its response.

        Raises:
            ConnectionResetError: the connection was closed without a response.
        """
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the connection was closed")
        response = self._response = HttpResponse()
        try:
            self._transport.write(message)
            await response.head()
        except BaseException:
            self.close()
            raise
        return response

    def close(self) -> None:
        """Close the connection at once, so that the server stops working on the request."""
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"what the server sent is not HTTP: {error}")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        response = self._response
        if response is not None and response.status and not _is_delimited(response.headers):
            response.end(keeps_alive=False)
        self._fail(str(exc or "the server closed the connection before its answer was complete"))

    def _fail(self, text: str) -> None:
        if self._response is not None:
            self._response.fail(ConnectionResetError(text))

    # -- httptools -----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200 and self._response is not None:
            self._response.begin(status, self._headers)

    def on_body(self, body: bytes) -> None:
        if self._response is not None:
            self._response.feed(body)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() >= 200 and self._response is not None:
            self._response.end(keeps_alive=self._parser.should_keep_alive())


def _is_delimited(headers: Mapping[str, str]) -> bool:
    """Whether the end of the body is known without the connection being closed."""
    return "content-length" in headers or "transfer-encoding" in headers


def _tls(verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
