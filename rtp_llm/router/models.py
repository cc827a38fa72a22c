# SPDX-License-Identifier: Apache-2.0
"""Which models the workers serve, and which workers may get a request for a model."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import h11
import msgspec

from rtp_llm.router.requested import Requested
from rtp_llm.router.upstream import Query, call_upstream
from rtp_llm.router.workers import Worker, Workers
from rtp_llm.server.types.errors import ApiError, bad_request

_logger = logging.getLogger("rtp_llm.router")
_SECONDS = 2.0
_MAX_BYTES = 2**20


class _List(msgspec.Struct):
    data: list[dict[str, Any]]


async def ask_for_models(worker: Worker, key: str | None) -> None:
    """Read a worker's /v1/models; if that fails, its models stay unchanged. ``key``: the workers'
    API key."""
    headers = [] if key is None else [(b"authorization", f"Bearer {key}".encode())]
    query = Query("GET", b"/v1/models", headers, b"")
    body, status = b"", 0
    try:
        async with (
            asyncio.timeout(_SECONDS),
            contextlib.aclosing(call_upstream(worker, query, _SECONDS)) as events,
        ):
            async for event in events:
                status = event.get("status", status)
                body += event.get("body", b"")
                if status != 200 or len(body) > _MAX_BYTES:
                    return
        cards = msgspec.json.decode(body, type=_List).data
    except (OSError, h11.RemoteProtocolError, ValueError):  # TimeoutError is an OSError
        return
    worker.models = {card["id"]: card for card in cards if isinstance(card.get("id"), str)}


def warn_of_several(workers: Workers, warned: frozenset[str]) -> frozenset[str]:
    """Warn if the workers serve models of different names. Returns the names, to be passed to the
    next call, which only warns again if they changed."""
    names, sets = frozenset(workers.models), workers.sets_of_names
    if sets and not frozenset.intersection(*sets) and names != warned:
        lists = [f"{each.url} has {', '.join(each.models)}" for each in workers.all if each.models]
        text = "the workers have different models; a request goes where its `model` is: %s"
        _logger.warning(text, "; ".join(lists))
    return names


def model_of(requested: Requested, workers: Workers) -> str | None:
    """The model name that a worker must serve to get this request; None: any worker will do.

    Raises:
        ApiError: there are several models, and the request names none of them.
    """
    names, sets = workers.models, workers.sets_of_names
    if len(sets) < 2 or not requested.readable:
        return None
    if requested.model is None:
        if frozenset.intersection(*sets):
            return None  # one model that some workers serve under more names
        served = ", ".join(repr(name) for name in sorted(names))
        text = f"There are several models behind this router; name one of {served}."
        raise bad_request(text, "model", "missing_required_parameter")
    if requested.model not in names and workers.all_models_known:
        raise unknown_name(requested.model, workers)
    return requested.model


def unknown_name(name: str, workers: Workers) -> ApiError:
    """The 404 error for a model that no worker serves."""
    served = ", ".join(repr(each) for each in sorted(workers.models))
    text = f"The model {name!r} does not exist; the servers behind this router have {served}."
    return ApiError(404, text, param="model", code="model_not_found")
