# SPDX-License-Identifier: Apache-2.0
"""ASGI middleware for all requests: key, size limit, request id, metrics, access log."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rtp_llm.server.endpoint.endpoint_tasks import check_task
from rtp_llm.server.endpoint.server_state import ServerState
from rtp_llm.server.http.asgi import REQUEST_ID, headers_only, send_error, too_large
from rtp_llm.server.http.load_report import load_report
from rtp_llm.server.http.open_requests import BODY, Body, OpenRequests
from rtp_llm.server.http.page import asks_for_page
from rtp_llm.server.http.request_headers import (
    HostCheck,
    check_content_type,
    decoded,
    kept_request_id,
)
from rtp_llm.server.keys.key_ring import ACCOUNT, check_admin, check_model
from rtp_llm.server.keys.quota import Account
from rtp_llm.server.telemetry.finished import FinishedRequest
from rtp_llm.server.types.engine_interface import EngineInterface
from rtp_llm.server.types.error_body import is_of_messages
from rtp_llm.server.types.errors import ApiError, internal

OPEN_PATHS = frozenset({"/health", "/liveness", "/ping"})
BODILESS = frozenset({"GET", "HEAD"})  # not subject to the limit on open requests
CLIENT_CLOSED = 499  # nginx's code for a client that went away; never sent, only counted

_access = logging.getLogger("rtp_llm.access")
_log = logging.getLogger("rtp_llm.server")


class RequestMiddleware:
    """The outermost ASGI application.

    `paths`: the routes, for metric labels; `direct`: handlers called instead of `app`, by method
    and path; `json_paths`: the paths that take a JSON body with POST.
    """

    def __init__(
        self,
        app: ASGIApp,
        state: ServerState,
        paths: frozenset[str],
        direct: Mapping[tuple[str, str], ASGIApp],
        json_paths: Collection[str],
    ) -> None:
        self._app = app
        self._direct = direct
        self._state = state
        self._paths, self._json_paths = paths, json_paths
        self._hosts = HostCheck(state.settings)
        self._open = OpenRequests(state.settings)
        self._prefix = state.settings.root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        context = _RequestContext(scope, send, headers)
        scope["path"] = self._path(scope)
        try:
            self._check(scope, headers)
            app = self._direct.get((scope["method"], scope["path"]), self._app)
            context.engine = None if app is self._app else self._state.engine
            if scope["method"] in BODILESS:
                is_head = scope["method"] == "HEAD"
                await app(scope, receive, headers_only(context.send) if is_head else context.send)
                return
            receive = decoded(headers, receive, self._state.settings.max_request_bytes)
            with self._counted(scope), self._open.enter(scope, receive) as counted:
                await app(scope, counted, context.send)
        except ApiError as error:
            await self._apologise(context, error)
        except ClientDisconnect:
            context.status = None
        except Exception:
            _log.exception("request %s of %s failed", context.request_id, context.client)
            await self._apologise(context, internal())
        finally:
            self._finish(context)

    def buffer_body(self, scope: Scope) -> Body | None:
        """See BufferBody. Requests that are refused regardless of their body are called at once."""
        path, headers = self._path(scope), dict(scope["headers"])
        if scope["method"] != "POST" or path not in self._json_paths:
            return None
        try:
            scope["path"] = path
            self._check(scope, headers)
            decoded(headers, _unread, self._state.settings.max_request_bytes)
            if account := scope.get(ACCOUNT):
                account.check_request()
            if ("POST", path) in self._direct:
                self._state.check_admission()
            return self._open.expect(functools.partial(self._note_abandoned, scope))
        except ApiError:
            return None

    def _note_abandoned(self, scope: Scope) -> None:
        """Count a client that disconnected; kept cheap, as many may disconnect at once."""
        seconds = time.perf_counter() - scope[BODY].began
        self._count(scope["path"], CLIENT_CLOSED, seconds)
        if self._state.settings.access_log:
            context = _RequestContext(scope, _unsent, dict(scope["headers"]))
            _log_access(context, CLIENT_CLOSED, seconds)

    def _check(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        self._hosts.check(headers)
        if not self._is_open(scope, headers):
            account = scope[ACCOUNT] = self._state.keys.find(headers)
            check_admin(scope["path"], account)
            if scope["path"] in self._json_paths:
                check_model(self._state.settings.model_names, account)
        length = headers.get(b"content-length", b"0")
        limit = self._state.settings.max_request_bytes
        if length.isdigit() and int(length) > limit:
            raise too_large(limit)
        if scope["method"] == "POST" and scope["path"] in self._json_paths:
            check_task(scope["path"], self._state.engine.ready)
            check_content_type(headers)

    def _path(self, scope: Scope) -> str:
        """The path without the prefix that a proxy may have left, and without a trailing slash."""
        path: str = scope["path"]
        if self._prefix and f"{path}/".startswith(f"{self._prefix}/"):
            path = path.removeprefix(self._prefix)
        return path.rstrip("/") or "/"

    def _is_open(self, scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
        """Whether no key is needed. The web page needs none: it asks the user for the key."""
        if scope["path"] in OPEN_PATHS:
            return True
        page = self._state.settings.page
        return page and asks_for_page(scope["method"], scope["path"], headers)

    @contextlib.contextmanager
    def _counted(self, scope: Scope) -> Iterator[None]:
        """Count the request against the limits of its key; raises ApiError 429."""
        account: Account | None = scope.get(ACCOUNT)
        if account is None or scope["path"] not in self._json_paths:
            yield
            return
        account.begin_request()
        try:
            yield
        finally:
            account.end_request()

    async def _apologise(self, context: _RequestContext, error: ApiError) -> None:
        if context.status is None:
            await send_error(context.send, error, context.path, context.request_id)

    def _finish(self, context: _RequestContext) -> None:
        seconds = time.perf_counter() - context.started
        code = CLIENT_CLOSED if context.disconnected else context.status or CLIENT_CLOSED
        self._count(context.route if context.route in self._paths else "other", code, seconds)
        if self._state.settings.access_log and context.path not in OPEN_PATHS:
            _log_access(context, code, seconds)
        telemetry = self._state.telemetry
        if telemetry is not None and (context.method, context.path) in self._direct:
            model = self._state.settings.model_name
            telemetry.record(context.finished(model, code, seconds))

    def _count(self, path: str, code: int, seconds: float) -> None:
        self._state.metrics.count_request(path, code, seconds)


class _RequestContext:
    """The state of one request in the middleware."""

    def __init__(self, scope: Scope, send: Send, headers: Mapping[bytes, bytes]) -> None:
        self.request_id = kept_request_id(headers) or f"req_{os.urandom(16).hex()}"
        scope[REQUEST_ID] = self.request_id
        body: Body | None = scope.get(BODY)
        self.started = body.began if body else time.perf_counter()
        self.status: int | None = None
        self.engine: EngineInterface | None = None
        """The engine whose load the answer may report; None if the request does not generate."""
        self._scope = scope
        self._headers = headers
        self._send = send
        self._for_anthropic = b"anthropic-version" in headers

    @property
    def path(self) -> str:
        return str(self._scope["path"])

    @property
    def method(self) -> str:
        return str(self._scope["method"])

    @property
    def client(self) -> str:
        """The client's address."""
        return str((self._scope.get("client") or ("",))[0])

    @property
    def route(self) -> str:
        """The route's path, such as /v1/models/{name:path} for all models."""
        return str(getattr(self._scope.get("route"), "path", self.path))

    @property
    def disconnected(self) -> bool:
        answer = self._scope.get("rtp_llm.answer")
        return bool(answer and answer.disconnected)

    async def send(self, message: Message) -> None:
        """Record the status and add the request id to the headers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            account: Account | None = self._scope.get(ACCOUNT)
            more = [(b"x-request-id", self.request_id.encode())]
            if self._for_anthropic or is_of_messages(self.path):
                more.append((b"request-id", self.request_id.encode()))
            more += account.headers() if account else []
            if self.engine is not None and self.status == 200:
                more += load_report(self._headers, self.engine.latest_stats)
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        await self._send(message)

    def finished(self, model: str, code: int, seconds: float) -> FinishedRequest:
        """The finished request, for telemetry."""
        account: Account | None = self._scope.get(ACCOUNT)
        answer = self._scope.get("rtp_llm.answer")
        return FinishedRequest(
            path=self.path,
            model=model,
            status=code,
            seconds=seconds,
            request_id=self.request_id,
            key_name=account.key.name if account else "",
            headers=dict(self._scope["headers"]),
            generation=answer.generation if answer else None,
        )

    def record(self, code: int, seconds: float) -> dict[str, Any]:
        """Write the access log line, which never contains the content of the request."""
        record: dict[str, Any] = {
            "id": self.request_id,
            "client": self.client,
            "method": self.method,
            "path": self.path,
            "status": code,
            "seconds": round(seconds, 6),
        }
        account: Account | None = self._scope.get(ACCOUNT)
        if account and account.key.name:
            record["key"] = account.key.name
        answer = self._scope.get("rtp_llm.answer")
        if answer is not None:
            usage = answer.generation.usage
            first = answer.generation.first_token_seconds
            record |= {
                "first_token_seconds": None if first is None else round(first, 6),
                "prompt_tokens": usage.prompt_tokens,
                "cached_tokens": usage.cached_tokens,
                "completion_tokens": usage.completion_tokens,
            }
        return record


def _log_access(context: _RequestContext, code: int, seconds: float) -> None:
    _access.info("request", extra={"fields": context.record(code, seconds)})


async def _unread() -> Message:
    raise AssertionError("read before the application was called")


async def _unsent(_message: Message) -> None:
    raise AssertionError("answered after its client went away")
