# SPDX-License-Identifier: Apache-2.0
"""Pages that the router answers itself: its state, its workers, their models, its metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.types import Scope

from rtp_llm import __version__
from rtp_llm.router.models import unknown_name
from rtp_llm.router.router_metrics import CONTENT_TYPE, RouterMetrics
from rtp_llm.router.workers import Worker, Workers
from rtp_llm.server.http.page import asks_for_page
from rtp_llm.server.model_cards import model_list

_JSON = "application/json"
_MODELS = "/v1/models"


@dataclass(frozen=True)
class Page:
    """A complete response; ``kind`` is its content type."""

    status: int
    body: bytes
    kind: str = _JSON


class Pages:
    """The pages by path; all are read-only and answered without contacting a worker."""

    def __init__(self, workers: Workers, metrics: RouterMetrics) -> None:
        self._workers, self._metrics = workers, metrics
        self.draining = False

    def find(self, scope: Scope) -> Page | None:
        """The page of a path, or None if a worker has to answer it.

        Raises:
            ApiError: 404 for a model that no worker serves.
        """
        path = scope["path"].rstrip("/") or "/"
        if scope["method"] not in ("GET", "HEAD"):
            return None
        if path == _MODELS or path.startswith(_MODELS + "/"):
            return self._models(path)
        if path == "/":
            shows_page = asks_for_page(scope["method"], path, dict(scope["headers"]))
            return None if shows_page else self._root(scope)
        if path == "/metrics":
            return Page(200, self._metrics.render(), CONTENT_TYPE)
        if path == "/workers":
            return _json(200, [_record(worker) for worker in self._workers.all])
        return self._health(path) if path in ("/health", "/liveness") else None

    def _health(self, path: str) -> Page:
        able = sum(worker.healthy for worker in self._workers.all)
        if self.draining and path == "/health":
            return _json(503, {"status": "draining", "workers": able})
        if able or path == "/liveness":
            return _json(200, {"status": "ready", "workers": able})
        return _json(503, {"status": "no worker", "workers": 0})

    def _models(self, path: str) -> Page | None:
        cards = self._workers.models
        if not cards:  # not known yet, or readable only with the workers' key
            return None
        if path == _MODELS:
            return _json(200, model_list([*cards.values()]))
        name = path.removeprefix(_MODELS + "/")
        if name in cards:
            return _json(200, cards[name])
        if self._workers.all_models_known:
            raise unknown_name(name, self._workers)
        return None

    def _root(self, scope: Scope) -> Page:
        state = "draining" if self.draining else "ready" if self._able() else "no worker"
        url = str(Request(scope).base_url).rstrip("/")
        lines = [
            f"RTP-LLM {__version__} router at {url} ({state}).",
            "",
            "Workers:",
            *(f"  {_line(worker)}" for worker in self._workers.all),
            "",
            "Its own: / /health /liveness /metrics /workers /v1/models",
            "All else goes to a worker: /v1/chat/completions /v1/completions ...",
        ]
        return Page(200, "\n".join([*lines, ""]).encode(), "text/plain; charset=utf-8")

    def _able(self) -> bool:
        return any(worker.selectable for worker in self._workers.all)


def _record(worker: Worker) -> dict[str, Any]:
    return {
        "url": worker.url,
        "healthy": worker.healthy,
        "open_requests": worker.open_requests,
        "models": None if worker.models is None else list(worker.models),
        "failures_in_row": worker.backoff.failures,
        "backoff": worker.backoff.state,
        "backoff_seconds": round(worker.backoff.seconds_left, 3),
    }


def _line(worker: Worker) -> str:
    words = ["takes requests" if worker.selectable else "takes none"]
    if worker.backoff.state == "open":
        words.append(f"left out for {worker.backoff.seconds_left:.0f} s after failures")
    elif worker.backoff.state == "half_open":
        words.append("to be tried after failures")
    words.append(f"{worker.open_requests} open requests")
    words.append("models " + ", ".join(worker.models) if worker.models else "models not known")
    return f"{worker.url}  {'; '.join(words)}"


def _json(status: int, content: Any) -> Page:
    return Page(status, msgspec.json.encode(content))
