# SPDX-License-Identifier: Apache-2.0
"""HTTP/1 on one connection, with limits on what clients may send and how long they may take."""

from __future__ import annotations

import asyncio
import math
import socket
from typing import Any

import httptools
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from rtp_llm.server.http.asgi import EVENT_STREAM
from rtp_llm.server.http.buffering import CONTINUE, BufferingProtocol
from rtp_llm.server.http.connections import ConnectionPool
from rtp_llm.server.http.old_http import without_chunks
from rtp_llm.server.http.stall import Progress, Stall, ask_system
from rtp_llm.server.types.errors import ApiError, bad_request, unavailable

# Pipelined requests that may wait for the answer to an earlier one of their connection.
MAX_PIPELINED = 16
# Bytes of one read; with more, too much would be parsed before limits are checked.
SLICE_BYTES = 2**15
# Overhead allowed for chunked framing: a number of bytes plus a share of the body's length.
FRAMING_BYTES, FRAMING_SHARE = 2**16, 0.25
# Seconds for the rest of a body after its request was answered.
REST_SECONDS = 5.0
# After a client closed its half: when to check, in addition to each sweep, if it still reads.
LOOK_SECONDS = (0.02, 0.2)
_TCP_CLOSE = 7  # the state of a socket that was reset, in the first byte of TCP_INFO
_COMMENT = b"2\r\n:\n\r\n"  # a comment of server-sent events, as a chunk; readers skip it


class _RefusedError(Exception):
    """Stops the parser from processing the received data."""


class HttpProtocol(BufferingProtocol):
    """uvicorn's protocol with the limits of the settings; ConnectionPool.sweep checks deadlines."""

    def __init__(self, *args: Any, pool: ConnectionPool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.peer = ""
        self._pool, self._limits = pool, pool.settings
        self._in_head = self._in_body = self._at_end = False
        self._head_bytes = self._num_headers = self._framing = self._body_bytes = 0
        self._undelimited = 0  # bytes received of an incomplete head
        self._deadline = math.inf
        self._refusal: tuple[str, ApiError] | None = None
        self._deaf = self._half_closed = self.lost = False
        self._stall = Stall()

    # -- the connection --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected; it is refused if there are too many."""
        super().connection_made(transport)
        self.flow = _Flow(self.transport, self)
        self.peer = self.client[0] if self.client else ""
        self._deadline = self.loop.time() + self._limits.keep_alive_timeout
        self._pool.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed; frees its place in the pool."""
        self.lost = True
        self._pool.remove(self)
        self.forget()
        if self._active is not None and not self._active.response_complete:
            # uvicorn notifies only the newest request.
            self._active.disconnected = True
            self._active.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)
        if self._active is None or self._active.response_complete:
            # Drop references, so that the memory is freed before the garbage collector runs.
            self._active = self._begun = None
            self.cycle = self.flow = self.transport = None  # type: ignore[assignment]

    def evict(self) -> None:
        """See Connection."""
        cycle = self.cycle
        if cycle is not None and (cycle.response_complete or cycle.response_started):
            between = not (self._in_head or self._undelimited)  # HTTP lets a server close then
            if between or not cycle.response_complete:
                self._pool.count("evicted", self.peer)
                self._wire.close()
                if self._wire.get_write_buffer_size():
                    self._wire.abort()
                return
        text = "There are too many connections; this one was slow to send its request."
        self.refuse("evicted", unavailable(text, "overloaded"))

    def abort(self) -> None:
        """See Connection."""
        self._wire.abort()

    def check(self, now: float) -> None:
        """See Connection."""
        self._check_stall(now)
        if self._half_closed:
            self._look()
        if self._body is not None:
            self._body.check(now)
        if now < self._deadline:
            return
        if self.flow.read_paused:  # we are the ones not reading
            self._deadline = now + self._limits.header_timeout
            return
        self._deadline = math.inf
        if self._in_head or self._undelimited:
            seconds = self._limits.header_timeout
            text = f"The headers were not complete after {seconds:g} s (see --header-timeout)."
            self.refuse("header_timeout", ApiError(408, text, code="request_timeout"))
        else:
            self._wire.close()

    # -- what the client sends -------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse received data; anything over a limit is refused before it is buffered."""
        if self._deaf or self.lingers:
            if self.lingers:
                super().data_received(data)
            return
        if len(data) <= SLICE_BYTES:
            self._parse(data)
            return
        view = memoryview(data)
        for start in range(0, len(data), SLICE_BYTES):
            if not (self._deaf or self.lingers or self._wire.is_closing()):
                self._parse(view[start : start + SLICE_BYTES])

    def _parse(self, data: bytes | memoryview) -> None:
        self._feed(data)
        self.begin()

    def _feed(self, data: bytes | memoryview) -> None:
        began_in_body, before = self._in_body, self._body_bytes
        self._at_end = False
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # protocol upgrades are not supported
        except httptools.HttpParserError:
            reason, error = self._refusal or (
                "invalid",
                bad_request("This is no valid HTTP/1.1 request.", code="invalid_http"),
            )
            self.refuse(reason, error)
            return
        if self._at_end:
            self._undelimited = 0
            if self._in_head:
                self._deadline = self.loop.time() + self._limits.header_timeout
        elif not self._in_body:
            self._count_undelimited(len(data))
        elif began_in_body:
            self._count_framing(len(data) - (self._body_bytes - before))

    def _count_undelimited(self, size: int) -> None:
        """Count the bytes of an incomplete head: the parser only reports complete lines."""
        if not self._undelimited:
            self._deadline = self.loop.time() + self._limits.header_timeout
        self._undelimited += size
        if self._undelimited > self._limits.max_header_bytes:
            self.refuse("headers", self._too_long())

    def _count_framing(self, size: int) -> None:
        """Count the framing bytes: chunk sizes, extensions and trailers."""
        self._framing += size
        if self._framing > FRAMING_BYTES + FRAMING_SHARE * self._body_bytes:
            text = "The chunks of this body are too small, or their extensions too long."
            self.refuse("chunks", bad_request(text, code="invalid_http"))

    def _too_long(self) -> ApiError:
        limits = self._limits
        text = (
            f"The request line and headers are longer than {limits.max_header_bytes} bytes or "
            f"more than {limits.max_headers} (see --max-header-bytes, --max-headers)."
        )
        return ApiError(431, text, code="headers_too_large")

    def _stop(self, reason: str, error: ApiError) -> None:
        self._refusal = reason, error
        raise _RefusedError

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client closed its half: it may still read the answer, or be gone.

        Only a write can tell: if the client is gone, its system resets the connection.
        """
        cycle = self._active
        if self.lingers or cycle is None or cycle.response_complete or self.cycle.more_body:
            return False
        if not self._wire.can_write_eof():  # TLS closes both halves
            return False
        events = cycle.scope.get(EVENT_STREAM)
        if cycle.response_started and not events:
            return False
        self.cycle.keep_alive = False  # the newest one
        self._half_closed = True
        if cycle.scope["http_version"] == "1.1":
            self._wire.write(_COMMENT if cycle.response_started else CONTINUE)
            for seconds in LOOK_SECONDS:
                self.loop.call_later(seconds, self._look)
        return True

    def _look(self) -> None:
        """Check whether a client that closed its half is gone."""
        if self._wire.is_closing() or not self.peer:  # writing to a Unix socket fails at once
            return
        peer = self._wire.get_extra_info("socket")
        if peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE:
            self._wire.abort()

    # -- the parser's calls ----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._in_head = True
        self._head_bytes = self._num_headers = 0
        self._pool.begin(self)
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A piece of the request line."""
        self._head_bytes += len(url)
        if self._head_bytes > self._limits.max_header_bytes:
            self._stop("headers", self._too_long())
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer, which is ignored."""
        self._num_headers += 1
        self._head_bytes += len(name) + len(value) + 4
        limits = self._limits
        if self._num_headers > limits.max_headers or self._head_bytes > limits.max_header_bytes:
            self._stop("headers", self._too_long())
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The headers are complete; the request starts, or waits for the previous one."""
        if len(self.pipeline) >= MAX_PIPELINED:
            text = "Too many requests were sent before the first one was answered."
            self._stop("pipelined", bad_request(text, code="invalid_http"))
        self._in_head, self._in_body = False, True
        self._undelimited = self._framing = self._body_bytes = 0
        self._deadline = math.inf
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if cycle.scope["http_version"] != "1.1":
            app = without_chunks(cycle, app)
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._in_body, self._at_end = False, True
        self._pool.busy(self)
        if self._pool.crowded:
            self.cycle.keep_alive = False
        super().on_message_complete()
        if self.cycle.response_complete:
            self._rest()

    # -- answers -----------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """An answer is complete; starts the next request of the connection, if there is one."""
        waiting = bool(self.pipeline)
        super().on_response_complete()
        if not waiting:
            self._rest()

    def _rest(self) -> None:
        """All requests were answered. The rest of a body may still arrive for a while."""
        timeout = REST_SECONDS if self._in_body else self._limits.keep_alive_timeout
        self._deadline = self.loop.time() + timeout
        self._pool.rest(self)

    def refuse(self, reason: str, error: ApiError) -> None:
        """See Connection. A complete request in progress is answered first."""
        if self._wire.is_closing() or self.lingers or self._deaf:
            return
        self._pool.count(reason, self.peer, error.message)
        self._deadline = math.inf
        active = self._active
        if active is not None and not active.response_complete:
            if active.response_started or not active.more_body:
                self._deaf = True
                whole = [each for each, _ in self.pipeline if not each.more_body]
                self.pipeline = type(self.pipeline)(
                    pair for pair in self.pipeline if pair[0] in whole
                )
                (whole[0] if whole else active).keep_alive = False
                self.flow.pause_reading()
                return
            active.disconnected = True
            active.message_event.set()
            self.forget()
        self.pipeline.clear()
        self._write_error(error)
        self.linger()

    def linger(self) -> None:
        """See LingeringProtocol; the connection becomes the first to be aborted."""
        self._pool.leave(self)
        super().linger()

    def _write_error(self, error: ApiError) -> None:
        body = error.body()
        head = [STATUS_LINE[error.status]]
        given = [(name.encode(), value.encode()) for name, value in error.headers.items()]
        fixed = [(b"content-type", b"application/json"), (b"connection", b"close")]
        length = (b"content-length", b"%d" % len(body))
        for name, value in [*self.server_state.default_headers, *given, *fixed, length]:
            head.append(b"%s: %s\r\n" % (name, value))
        self._wire.write(b"".join([*head, b"\r\n", body]))

    @property
    def unread(self) -> bool:
        """See LingeringProtocol."""
        return self._deaf or super().unread

    @property
    def listens(self) -> bool:
        """Whether to read: not while there are pipelined requests that wait to be answered."""
        return self.lingers or not (self.pipeline or self._deaf)

    # -- a client that does not read -----------------------------------------------------------

    def _check_stall(self, now: float) -> None:
        seconds = self._limits.stream_stall_timeout
        if self._stall.look(now, self._progress()) >= seconds:
            text = f"read nothing of its answer for {seconds:g} s (see --stream-stall-timeout)"
            self._pool.count("stalled", self.peer, text)
            self._stall = Stall()
            self._wire.abort()

    def _progress(self) -> Progress:
        """Of the answer, with what the system holds of it, or, if it does not say, without."""
        unsent = self._wire.get_write_buffer_size()
        cycle = self._active
        answering = cycle is not None and cycle.response_started and not cycle.response_complete
        if not answering and not unsent:
            return Progress(False, 0)
        connection = self._wire.get_extra_info("socket")
        if connection is not None and self.peer and not self._wire.is_closing():
            system = ask_system(connection)
            if system is not None:
                return Progress(unsent > 0 or system.waits, system.taken)
        # What the transport holds may grow while it is read, unless nothing more is written.
        return Progress(self.flow.write_paused or self._wire.is_closing(), -unsent)


class _Flow(FlowControl):
    """uvicorn's flow control, but resumes reading only while the connection listens."""

    def __init__(self, transport: asyncio.Transport, protocol: HttpProtocol) -> None:
        super().__init__(transport)
        self._protocol = protocol

    async def drain(self) -> None:
        """Wait until more can be sent; raises ClientDisconnect if the client is gone.

        Without the exception, an answer would go on formatting its queued deltas for nobody.
        """
        await super().drain()
        if self._protocol.lost:
            raise ClientDisconnect

    def resume_reading(self) -> None:
        """Called by every request that waits for its body, or for the client to disconnect."""
        if self.read_paused and self._protocol.listens:
            super().resume_reading()
