# SPDX-License-Identifier: Apache-2.0
"""The router's ASGI application: answers its own pages and forwards everything else."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import time
from collections.abc import Mapping

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send

from rtp_llm.config.settings import Settings
from rtp_llm.router.forward import Forwarder
from rtp_llm.router.models import model_of
from rtp_llm.router.pages import Page, Pages
from rtp_llm.router.reply import Reply
from rtp_llm.router.requested import COMPARED_BYTES, LONG_BYTES, Requested, read_requested
from rtp_llm.router.router_metrics import RouterMetrics
from rtp_llm.router.upstream import Query
from rtp_llm.router.workers import Workers
from rtp_llm.server.http.asgi import read_body, send_body, send_start, wait_for_disconnect
from rtp_llm.server.http.open_requests import Body, OpenRequests
from rtp_llm.server.http.page import asks_for_page
from rtp_llm.server.http.request_headers import HostCheck, decoded
from rtp_llm.server.http.shutdown import Cuttable
from rtp_llm.server.keys.key_ring import given_key
from rtp_llm.server.types.errors import ApiError, unavailable

_OPEN_PATHS = ("/health", "/liveness")
_CLIENT_CLOSED = 499  # nginx's code for a client that went away; never sent, only counted


class Proxy:
    """Sends each request to a worker and tracks the open answers."""

    def __init__(self, workers: Workers, settings: Settings) -> None:
        self._workers, self._open = workers, OpenRequests(settings)
        self._max_body = settings.max_request_bytes
        self._key, self._hosts = settings.api_key, HostCheck(settings)
        self.metrics = RouterMetrics(workers, self._open)
        self._forwarder = Forwarder(workers, settings.answer_timeout, self.metrics)
        self._pages = Pages(workers, self.metrics)
        self.answers: set[Cuttable] = set()
        self.answered = 0

    def start_draining(self) -> None:
        """Stop admitting requests."""
        self._pages.draining = True

    async def wait_until_idle(self, seconds: float) -> bool:
        """Wait for open answers to end; False when some are left after `seconds`."""
        deadline = time.monotonic() + seconds
        while self.answers and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        return not self.answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI request."""
        reply, worker = Reply(send, scope["path"]), ""
        try:
            headers = dict(scope["headers"])
            self._hosts.check(headers)
            if not asks_for_page(scope["method"], scope["path"], headers):
                self._check_key(scope["path"], headers)
            if (page := self._pages.find(scope)) is not None:
                reply.status = page.status
                await _show(page, scope, send)
                return
            if self._pages.draining:
                raise unavailable("The router is shutting down.", "draining")
            with self._open.enter(scope, receive) as counted:
                plain = decoded(headers, counted, self._max_body)
                body = await read_body(Request(scope, plain), self._max_body)
                worker = await self._pass_on(scope, body, receive, reply)
        except ClientDisconnect:
            pass
        except ApiError as error:
            await reply.fail(error)
        finally:
            self.metrics.requests.labels(worker, str(reply.status or _CLIENT_CLOSED)).inc()

    def buffer_body(self, scope: Scope) -> Body | None:
        """See BufferBody. Requests that are refused regardless of their body are called at once."""
        headers = dict(scope["headers"])
        if scope["method"] != "POST" or self._pages.draining:
            return None
        try:
            self._hosts.check(headers)
            self._check_key(scope["path"], headers)
            decoded(headers, _unread, self._max_body)
            return self._open.expect(self._note_abandoned)
        except ApiError:
            return None

    def _note_abandoned(self) -> None:
        self.metrics.requests.labels("", str(_CLIENT_CLOSED)).inc()

    async def _pass_on(self, scope: Scope, body: bytes, receive: Receive, reply: Reply) -> str:
        """Forward a request; returns the address of the worker that answered, or "" if none did."""
        suffix = b"?" + scope["query_string"] if scope["query_string"] else b""
        headers = [each for each in scope["headers"] if each[0] != b"content-encoding"]
        query = Query(scope["method"], scope["raw_path"] + suffix, headers, body)
        requested = self._read(body)
        model = model_of(requested, self._workers)
        forwarding = asyncio.create_task(self._forwarder.forward(query, requested, model, reply))
        passing = _Passing(forwarding)
        self.answers.add(passing)
        leaving = asyncio.create_task(wait_for_disconnect(receive))
        try:
            # If the client disconnects, closing the worker's connection aborts the request there.
            await asyncio.wait({forwarding, leaving}, return_when=asyncio.FIRST_COMPLETED)
            leaving.cancel()
            forwarding.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                return await forwarding
            if passing.is_cut:
                message = "The router is shutting down; the answer was cut."
                await reply.fail(unavailable(message, "shutdown"))
            return ""
        finally:
            self.answers.discard(passing)
            self.answered += 1

    def _read(self, body: bytes) -> Requested:
        """Read model and prompt of a body; a long body is read only if its model matters."""
        if not body:
            return Requested(readable=False)
        if len(body) > LONG_BYTES and len(self._workers.sets_of_names) < 2:
            return Requested(None, body[:COMPARED_BYTES], len(body))
        return read_requested(body)

    def _check_key(self, path: str, headers: Mapping[bytes, bytes]) -> None:
        """With --api-key, clients must send the key, as they would to a server."""
        if self._key is None or path in _OPEN_PATHS:
            return
        given = given_key(headers)
        if not hmac.compare_digest(_digest(given), _digest(self._key.encode())):
            message = (
                "Incorrect API key." if given else "No API key given; send it as a Bearer token."
            )
            asks = {"WWW-Authenticate": "Bearer"}
            raise ApiError(401, message, code="invalid_api_key", headers=asks)


async def _unread() -> Message:
    raise AssertionError("read before the application was called")


def _digest(key: bytes) -> bytes:
    """A digest of fixed length, so that the comparison does not reveal the key's length."""
    return hashlib.sha256(key).digest()


class _Passing:
    """A forwarded request that a shutdown may cut."""

    def __init__(self, forwarding: asyncio.Task[str]) -> None:
        self._forwarding = forwarding
        self.is_cut = False

    def cut(self) -> None:
        """See Cuttable."""
        self.is_cut = True
        self._forwarding.cancel()


async def _show(page: Page, scope: Scope, send: Send) -> None:
    headers = [
        (b"content-type", page.kind.encode()),
        (b"content-length", str(len(page.body)).encode()),
        *([(b"retry-after", b"1")] if page.status == 503 else []),
    ]
    await send_start(send, page.status, headers)
    await send_body(send, b"" if scope["method"] == "HEAD" else page.body)
