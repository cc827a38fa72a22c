# SPDX-License-Identifier: Apache-2.0
"""Forward a request to one worker, and to another one only if a retry is safe."""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass, field
from typing import Any

import h11
import msgspec

from rtp_llm.router.reply import Reply
from rtp_llm.router.requested import Requested
from rtp_llm.router.router_metrics import RouterMetrics
from rtp_llm.router.upstream import (
    OverdueError,
    Query,
    SilentError,
    UnreachableError,
    call_upstream,
    is_gone,
)
from rtp_llm.router.workers import Visit, Worker, Workers, pieces_of
from rtp_llm.server.keys.key_ring import given_key
from rtp_llm.server.types.errors import SERVER, ApiError, bad_request, unavailable

_logger = logging.getLogger("rtp_llm.router")
_REFUSALS = (429, 503)  # queue full, starting or stopping: another worker may accept the request
_MAX_PARTS = 16  # ASGI events kept of a refusal while another worker is tried
# Error codes of a server whose engine had the request, which may have crashed the engine.
_AFTER_ADMISSION = ("engine_dead", "aborted", "shutdown")


@dataclass
class _NotAnsweredError(Exception):
    """A worker did not give a complete answer.

    ``error``: for the client, if no other worker answers. ``refusal``: the worker's own response.
    ``touched``: the worker may have processed the request. ``gone``: the worker ended before it
    sent any part of an answer.
    """

    reason: str
    error: ApiError
    refusal: list[dict[str, Any]] = field(default_factory=list)
    touched: bool = True
    gone: bool = False


class Forwarder:
    """Sends each request to the worker that has to do the least work for it.

    A request is free to go to another worker if the connection failed or the worker refused it
    before admission (429, 503). Once a worker may have processed it, the request is retried at
    most once, and only if the worker is gone and no part of an answer arrived. A request on which
    a worker became unresponsive, or which it never answered, is not sent again.
    """

    def __init__(self, workers: Workers, answer_timeout: float, metrics: RouterMetrics) -> None:
        self._workers, self._answer_timeout, self._metrics = workers, answer_timeout, metrics

    async def forward(
        self, query: Query, requested: Requested, model: str | None, reply: Reply
    ) -> str:
        """Answer a request; returns the address of the worker that answered, or "" if none did.

        Raises:
            ApiError: the request is not valid HTTP.
            OSError: a partial answer was sent, in a form that no error can follow.
        """
        pieces = pieces_of(requested.prompt, given_key(dict(query.headers)))
        tried: list[Worker] = []
        failures: list[_NotAnsweredError] = []
        while (worker := self._workers.choose(pieces, tried, model)) is not None:
            if tried:
                self._metrics.retries.labels(tried[-1].url, failures[-1].reason).inc()
            tried.append(worker)
            try:
                with Visit(worker, pieces, requested.length - len(requested.prompt)):
                    await self._ask(worker, query, reply)
                return worker.url
            except _NotAnsweredError as failure:
                failures.append(failure)
            if not _may_move(failures):
                break
        return await self._give_up(tried, failures, reply)

    async def _give_up(
        self, tried: list[Worker], failures: list[_NotAnsweredError], reply: Reply
    ) -> str:
        """Send the client the last known error of its request."""
        telling = [n for n, each in enumerate(failures) if each.touched or each.refusal]
        if not telling:
            message = "No server behind this router takes requests now."
            await reply.fail(unavailable(message, "no_worker"))
            return ""
        failure = failures[telling[-1]]
        for event in failure.refusal:
            await reply.take(event)
        if not failure.refusal and not await reply.fail(failure.error):
            raise OSError(failure.error.message)
        return tried[telling[-1]].url

    async def _ask(self, worker: Worker, query: Query, reply: Reply) -> None:
        """Relay the worker's answer. Raises _NotAnsweredError if it refuses or does not answer."""
        clock = _Clock(self._metrics, worker)
        refusal: list[dict[str, Any]] = []
        async with contextlib.aclosing(
            call_upstream(worker, query, self._answer_timeout)
        ) as events:
            try:
                async for event in events:
                    if not clock.has_answer:
                        clock.answered()
                    if refusal or event.get("status") in _REFUSALS:
                        refusal.append(event)
                        if len(refusal) > _MAX_PARTS:
                            raise OSError("its refusal does not end")
                        continue
                    await reply.take(event)
            except h11.LocalProtocolError as error:
                raise bad_request(f"This is no HTTP request: {error}.") from error
            except (OSError, h11.RemoteProtocolError) as error:
                failure = await _classify(worker, error, clock.has_answer)
                failure.touched = failure.touched and not refusal
                self._count(worker, failure, error)
                raise failure from error
        clock.ended()
        if refusal:
            touched = _code_of(refusal) in _AFTER_ADMISSION
            trouble = unavailable("The server refused the request.", "refused")
            raise _NotAnsweredError("refused", trouble, refusal, touched, gone=True)

    def _count(self, worker: Worker, failure: _NotAnsweredError, error: Exception) -> None:
        words = str(error) or type(error).__name__
        _logger.warning("%s: a request failed (%s): %s", worker.url, failure.reason, words)
        self._metrics.failures.labels(worker.url, failure.reason).inc()
        worker.backoff.failed()
        if seconds := worker.backoff.seconds_left:
            _logger.warning("%s is left out for %.0f s", worker.url, seconds)
        if failure.reason != "overdue":  # until its health check succeeds
            worker.healthy = False


class _Clock:
    """Times a worker's answer, and updates its circuit breaker."""

    def __init__(self, metrics: RouterMetrics, worker: Worker) -> None:
        self._metrics, self._worker = metrics, worker
        self._began = time.perf_counter()
        self.has_answer = False

    def answered(self) -> None:
        """Note the first part of the answer."""
        self.has_answer = True
        self._worker.backoff.answered()
        seconds = time.perf_counter() - self._began
        self._metrics.first_byte.labels(self._worker.url).observe(seconds)

    def ended(self) -> None:
        """Note the end of the answer."""
        self._worker.backoff.succeeded()
        seconds = time.perf_counter() - self._began
        self._metrics.seconds.labels(self._worker.url).observe(seconds)


def _may_move(failures: list[_NotAnsweredError]) -> bool:
    """Whether another worker may get the request: no worker has processed it, or only one that
    has since ended."""
    touched = [each for each in failures if each.touched]
    return len(touched) <= 1 and all(each.gone for each in touched)


async def _classify(worker: Worker, error: Exception, answered: bool) -> _NotAnsweredError:
    if isinstance(error, UnreachableError):
        return _NotAnsweredError("unreachable", _failed(f"{error}"), touched=False)
    if isinstance(error, OverdueError):
        message = f"The server gave no answer: {error} (see --answer-timeout)."
        return _NotAnsweredError("overdue", _failed(message, 504, "worker_timeout"))
    if isinstance(error, SilentError):
        message = "The server that had this request answers nothing any more."
        return _NotAnsweredError("silent", _failed(message))
    if answered:
        return _NotAnsweredError("broken", _failed("The server broke its answer off."))
    message = "The server that had this request ended the connection without an answer."
    return _NotAnsweredError("lost", _failed(message), gone=await is_gone(worker))


def _failed(message: str, status: int = 502, code: str = "worker_failed") -> ApiError:
    return ApiError(status, message, kind=SERVER, code=code)


def _code_of(refusal: list[dict[str, Any]]) -> str | None:
    """The code of an error in OpenAI's shape."""
    try:
        return _ERROR.decode(b"".join(each.get("body", b"") for each in refusal)).error.code
    except ValueError:
        return None


class _Inner(msgspec.Struct):
    code: str | None = None


class _Error(msgspec.Struct):
    error: _Inner


_ERROR = msgspec.json.Decoder(_Error)
