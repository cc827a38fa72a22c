"""The ASGI application of the router: a request goes to one worker, its answer back in pieces."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import h11
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from rtp_llm.config.settings import Settings
from rtp_llm.router.exchange import Asked, OverdueError, exchange
from rtp_llm.router.workers import Visit, Worker, Workers, pieces_of
from rtp_llm.server.asgi import read_body, send_error, send_json, wait_for_disconnect
from rtp_llm.server.errors import SERVER, ApiError, bad_request, unavailable
from rtp_llm.server.open_requests import OpenRequests

_logger = logging.getLogger("rtp_llm.router")
_REFUSALS = (429, 503)  # its queue is full, it is starting or going: another one may take it
_MOST_PARTS = 16  # of a refusal, which is kept until another worker was asked


class UnreachableError(OSError):
    """A worker gave no answer at all: another one may be asked."""


class Proxy:
    """Sends each request to the worker that has the least to do for it."""

    def __init__(self, workers: Workers, settings: Settings) -> None:
        self._workers, self._open = workers, OpenRequests(settings)
        self._max_body, self._patience = settings.max_request_bytes, settings.answer_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        path = scope["path"]
        if scope["method"] in ("GET", "HEAD") and path in ("/health", "/liveness", "/workers"):
            status, content = self._state(path)
            await send_json(send, status, msgspec.json.encode(content))
            return
        try:
            with self._open.enter(receive) as counted:
                body = await read_body(Request(scope, counted), self._max_body)
                await self._pass_on(scope, body, receive, send)
        except ClientDisconnect:
            return
        except ApiError as error:
            await send_error(send, error)

    async def _pass_on(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        asked = Asked(scope["method"], scope["raw_path"] + query, list(scope["headers"]), body)
        forwarding = asyncio.create_task(self._forward(asked, send))
        leaving = asyncio.create_task(wait_for_disconnect(receive))
        # A client that goes away takes its request with it: closing the connection aborts it.
        await asyncio.wait({forwarding, leaving}, return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        forwarding.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await forwarding

    def _state(self, path: str) -> tuple[int, Any]:
        able = sum(worker.healthy for worker in self._workers.all)
        if path == "/workers":
            return 200, [
                {"url": each.url, "healthy": each.healthy, "open_requests": each.open_requests}
                for each in self._workers.all
            ]
        if path == "/liveness" or able:
            return 200, {"status": "ready", "workers": able}
        return 503, {"status": "no worker", "workers": 0}

    async def _forward(self, asked: Asked, send: Send) -> None:
        pieces = pieces_of(prompt_bytes(asked.body))
        tried: list[Worker] = []
        refusal: list[dict[str, Any]] = []
        while (worker := self._workers.choose(pieces, tried)) is not None:
            tried.append(worker)
            try:
                with Visit(worker, pieces):
                    said = await self._exchange(worker, asked, send)
                if not said:
                    return
                refusal = said
            except ApiError as error:
                await send_error(send, error)
                return
            except UnreachableError as error:
                _logger.warning("%s does not answer: %s", worker.url, error)
                worker.healthy = False
        for event in refusal:
            await send(event)
        if not refusal:
            message = "No server behind this router takes requests now."
            await send_error(send, unavailable(message, "no_worker"))

    async def _exchange(self, worker: Worker, asked: Asked, send: Send) -> list[dict[str, Any]]:
        """Passes an answer on; that of a worker which takes no requests is returned instead.

        As long as nothing was passed on raises UnreachableError, or ApiError where another worker
        would do no better.
        """
        begun = False
        refusal: list[dict[str, Any]] = []
        async with contextlib.aclosing(exchange(worker, asked, self._patience)) as events:
            try:
                async for event in events:
                    if refusal or event.get("status") in _REFUSALS:
                        refusal.append(event)
                        if len(refusal) > _MOST_PARTS:
                            raise OSError("its refusal does not end")
                        continue
                    await send(event)
                    begun = True
            except h11.LocalProtocolError as error:
                raise bad_request(f"This is no HTTP request: {error}.") from error
            except (OSError, h11.RemoteProtocolError) as error:
                if not begun and isinstance(error, OverdueError):
                    _logger.warning("%s owes an answer: %s", worker.url, error)
                    message = f"The server gave no answer: {error} (see --answer-timeout)."
                    raise ApiError(504, message, kind=SERVER, code="worker_timeout") from error
                if not begun:
                    raise UnreachableError(str(error) or type(error).__name__) from error
                _logger.warning("%s broke off an answer: %s", worker.url, error)
                raise
        return refusal


def prompt_bytes(body: bytes) -> bytes:
    """What of a request's body makes its prompt; nothing where it is no JSON object."""
    try:
        content = msgspec.json.decode(body)
        if not isinstance(content, dict):
            return b""
        return msgspec.json.encode(content.get("messages", content.get("prompt", "")))
    except (ValueError, OverflowError, RecursionError):  # the server says what is wrong
        return b""
