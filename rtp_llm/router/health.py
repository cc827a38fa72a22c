# SPDX-License-Identifier: Apache-2.0
"""Periodic health checks of the workers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
import ssl
from typing import NamedTuple

import h11
import msgspec

from rtp_llm.router.upstream import Query, call_upstream
from rtp_llm.router.workers import Worker

_logger = logging.getLogger("rtp_llm.router")
PROBE_SECONDS = 0.5
_PROBE_TIMEOUT_SECONDS = 2.0
_MAX_BYTES = 65536
_MAX_CHARACTERS = 200
_MEGABYTE = 1e6


class Health(NamedTuple):
    """``status``: 200 if the worker accepts requests, another status if not, None without an
    answer; ``words``: the same in words."""

    status: int | None
    words: str


class _Loading(msgspec.Struct):
    done: int
    total: int


class _Body(msgspec.Struct):
    """The body of a server's /health. Other kinds of workers answer something else."""

    status: str
    reason: str = ""
    loading: _Loading | None = None


async def watch(worker: Worker) -> None:
    """Check a worker's health periodically."""
    while True:
        health = await probe(worker)
        worker.unanswered = 0 if health.status else worker.unanswered + 1
        healthy = health.status == 200
        if healthy != worker.healthy:
            _logger.info("%s %s", worker.url, "takes requests" if healthy else "takes none")
        worker.healthy, worker.health = healthy, health.words
        await asyncio.sleep(PROBE_SECONDS)


async def probe(worker: Worker) -> Health:
    """Check a worker's health once.

    The timeout is two seconds however many checks went unanswered; otherwise a slow worker
    would never come back.
    """
    query, answer_timeout = Query("GET", b"/health", [], b""), _PROBE_TIMEOUT_SECONDS
    status, body = 0, b""
    try:
        async with (
            asyncio.timeout(_PROBE_TIMEOUT_SECONDS),
            contextlib.aclosing(
                call_upstream(worker, query, answer_timeout, max_unanswered=math.inf)
            ) as events,
        ):
            async for event in events:
                status = int(event.get("status", status))
                body += event.get("body", b"")
                if status == 200 or len(body) > _MAX_BYTES:
                    break
    except (OSError, h11.RemoteProtocolError) as error:  # TimeoutError is one
        if not status:
            return Health(None, f"no answer: {_reason(error)}")
    return Health(status, health_words(status, body))


def health_words(status: int, body: bytes) -> str:
    """A /health response in words, on one line."""
    if status == 200:
        return "ready"
    try:
        said = msgspec.json.decode(body, type=_Body)
    except ValueError:
        return f"its /health answers {status}"
    if said.loading is not None and said.loading.total > 0:
        done, total = said.loading.done, said.loading.total
        size = f"{done / _MEGABYTE:,.0f} of {total / _MEGABYTE:,.0f} MB"
        return f"loading its model: {100 * done // total}%, {size}"
    words = ": ".join(each for each in (said.status, said.reason) if each)
    return " ".join(words.split())[:_MAX_CHARACTERS]


def _reason(error: Exception) -> str:
    cause = error.__cause__ or error
    if isinstance(cause, TimeoutError):
        return "nothing came in time"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted, {cause.verify_message} (see --worker-ca-certs)"
    if isinstance(cause, ssl.SSLError):
        return f"no TLS: {cause.reason or cause}"
    if isinstance(cause, OSError) and cause.errno and not isinstance(cause, socket.gaierror):
        return os.strerror(cause.errno)  # without asyncio's own description of the call
    return str(cause) or type(cause).__name__
