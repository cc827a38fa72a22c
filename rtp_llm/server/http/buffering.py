# SPDX-License-Identifier: Apache-2.0
"""Slow bodies are buffered by their connection, so that no task has to wait for them."""

from __future__ import annotations

from typing import Any

from starlette.types import Scope

from rtp_llm.server.http.lingering_close import LingeringProtocol
from rtp_llm.server.http.open_requests import ARRIVED, BODY, Body, BufferBody

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class BufferingProtocol(LingeringProtocol):
    """uvicorn's protocol, but calls the application when a body is complete, if it agrees to that.

    Most of the cost of a slow request is its task, which would wake up for every piece.
    """

    def __init__(self, *args: Any, buffer_body: BufferBody | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._buffer_body = buffer_body
        self._active: Any = None  # the cycle being answered; self.cycle is the newest
        self._begun: Any = None  # the last cycle whose answer has begun
        self._application: Any = None  # the application that answers it, until it is called
        self._body: Body | None = None  # the body of the same cycle, while it is incomplete

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._active, self._application = cycle, app

    def begin(self) -> None:
        """Call the application, unless the body is still being buffered."""
        if self._application is None:
            return
        if self._active.more_body and self._is_buffered(self._active):
            self.flow.resume_reading()
            return
        self._call()

    def _is_buffered(self, cycle: Any) -> bool:
        if self._body is None:
            if self._buffer_body is None:
                return False
            scope: Scope = cycle.scope
            self._body = self._buffer_body(scope)
            if self._body is None:
                return False
            scope[BODY] = self._body
            self._body.on_refused = self._call
            if cycle.waiting_for_100_continue:
                self._wire.write(CONTINUE)
                cycle.waiting_for_100_continue = False
        return self._body.grow(len(cycle.body))

    def _call(self) -> None:
        """Call the application: the request is complete, refused, or not to be buffered."""
        cycle, application = self._active, self._application
        self._application = self._body = None
        if cycle.body:
            cycle.message_event.set()
            cycle.scope[ARRIVED] = not cycle.more_body
        super()._start_asgi_task(cycle, application)

    def forget(self) -> None:
        """Drop an incomplete request, which will not be answered."""
        if self._application is None:
            return
        body, self._body = self._body, None
        self._active = self._application = None
        if body is not None:
            body.on_refused = None
            body.abandon()

    def on_body(self, body: bytes) -> None:
        """A piece of the body arrived; wakes the application only if it waits for the body."""
        if self._application is None or self._active is not self.cycle:
            super().on_body(body)
        else:
            self.cycle.body += body

    def begins_answer(self) -> bool:
        """See LingeringProtocol."""
        cycle = self._active
        if cycle is self._begun or cycle is None or not cycle.response_started:
            return False
        self._begun = cycle
        return bool(cycle.expected_content_length) and cycle.scope["method"] != "HEAD"

    def on_response_complete(self) -> None:
        """The next request of the connection may begin."""
        super().on_response_complete()
        self.begin()
