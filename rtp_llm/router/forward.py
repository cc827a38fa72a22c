# SPDX-License-Identifier: Apache-2.0
"""A request on its way: to one worker, and to another one only where that is safe."""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass, field
from typing import Any

import h11
import msgspec

from rtp_llm.router.asked import Wanted
from rtp_llm.router.metrics import RouterMetrics
from rtp_llm.router.reply import Reply
from rtp_llm.router.upstream import (
    Asked,
    OverdueError,
    SilentError,
    UnreachableError,
    call_upstream,
    is_gone,
)
from rtp_llm.router.workers import Visit, Worker, Workers, pieces_of
from rtp_llm.server.errors import SERVER, ApiError, bad_request, unavailable
from rtp_llm.server.keys.key_ring import given_key

_logger = logging.getLogger("rtp_llm.router")
_REFUSALS = (429, 503)  # its queue is full, it is starting or going: another one may take it
_MOST_PARTS = 16  # of a refusal, which is kept until another worker was asked
# Refusals of a server that had the request in its engine, which may have ended of it.
_AFTER_ADMISSION = ("engine_dead", "aborted", "shutdown")


@dataclass
class _NotAnsweredError(Exception):
    """A worker gave no whole answer.

    ``error``: for the client, if nobody else answers. ``refusal``: what the worker said itself.
    ``touched``: it had the request in its hands. ``gone``: it has ended, and nothing of an answer
    came before.
    """

    reason: str
    error: ApiError
    refusal: list[dict[str, Any]] = field(default_factory=list)
    touched: bool = True
    gone: bool = False


class Forwarder:
    """Sends each request to the worker that has the least to do for it.

    A worker that could not be connected to, or refuses the request before it is admitted (429,
    503), has done nothing with it: any other one may take it. A request that a worker had in its
    hands moves at most once, and only when nothing of an answer came and the worker is gone. One
    that made a worker mute, or that a worker let lie, is not sent again.
    """

    def __init__(self, workers: Workers, patience: float, metrics: RouterMetrics) -> None:
        self._workers, self._patience, self._metrics = workers, patience, metrics

    async def forward(self, asked: Asked, wanted: Wanted, model: str | None, reply: Reply) -> str:
        """Answer a request; returns the address of the worker that did, or "" for none.

        Raises:
            ApiError: what was asked is no request.
            OSError: half an answer went out that no error can follow.
        """
        pieces = pieces_of(wanted.prompt, given_key(dict(asked.headers)))
        tried: list[Worker] = []
        failures: list[_NotAnsweredError] = []
        while (worker := self._workers.choose(pieces, tried, model)) is not None:
            if tried:
                self._metrics.retries.labels(tried[-1].url, failures[-1].reason).inc()
            tried.append(worker)
            try:
                with Visit(worker, pieces, wanted.length - len(wanted.prompt)):
                    await self._ask(worker, asked, reply)
                return worker.url
            except _NotAnsweredError as failure:
                failures.append(failure)
            if not _may_move(failures):
                break
        return await self._give_up(tried, failures, reply)

    async def _give_up(
        self, tried: list[Worker], failures: list[_NotAnsweredError], reply: Reply
    ) -> str:
        """The client hears what was last known of its request."""
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

    async def _ask(self, worker: Worker, asked: Asked, reply: Reply) -> None:
        """Pass its answer on. Raises _NotAnsweredError if it gives none, or refuses."""
        clock = _Clock(self._metrics, worker)
        refusal: list[dict[str, Any]] = []
        async with contextlib.aclosing(call_upstream(worker, asked, self._patience)) as events:
            try:
                async for event in events:
                    if not clock.has_answer:
                        clock.answered()
                    if refusal or event.get("status") in _REFUSALS:
                        refusal.append(event)
                        if len(refusal) > _MOST_PARTS:
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
        if failure.reason != "overdue":  # until it says that it is well
            worker.healthy = False


class _Clock:
    """How long a worker takes, and what its answers say of it."""

    def __init__(self, metrics: RouterMetrics, worker: Worker) -> None:
        self._metrics, self._worker = metrics, worker
        self._began = time.perf_counter()
        self.has_answer = False

    def answered(self) -> None:
        """The first part of its answer."""
        self.has_answer = True
        self._worker.backoff.answered()
        seconds = time.perf_counter() - self._began
        self._metrics.first_byte.labels(self._worker.url).observe(seconds)

    def ended(self) -> None:
        """All of it is there."""
        self._worker.backoff.succeeded()
        seconds = time.perf_counter() - self._began
        self._metrics.seconds.labels(self._worker.url).observe(seconds)


def _may_move(failures: list[_NotAnsweredError]) -> bool:
    """Whether another worker may get the request: none of them answers it, or at most one had it
    and has ended."""
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
