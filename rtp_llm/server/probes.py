# SPDX-License-Identifier: Apache-2.0
"""Endpoints about the server's state; none of them enqueues work."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from rtp_llm import __version__
from rtp_llm.config.settings import options
from rtp_llm.server.endpoint.endpoint_base import json_response
from rtp_llm.server.endpoint.server_state import ServerState
from rtp_llm.server.http.listener import UNIX
from rtp_llm.server.http.page import asks_for_page, send_page
from rtp_llm.server.http.server_metrics import CONTENT_TYPE
from rtp_llm.server.model_cards import model_card, model_info, model_list
from rtp_llm.server.types.errors import no_access, unknown_model


class Probes:
    """Handlers of one server."""

    def __init__(self, state: ServerState, routes: Sequence[BaseRoute]) -> None:
        """`routes`: all routes of the application, for the list of endpoints."""
        self._state = state
        self._routes = routes

    async def health(self) -> Response:
        """200 while requests are admitted, else 503 with the reason and the bytes loaded so far."""
        phase = self._state.phase
        if phase == "ready":
            return json_response({"status": "ready"})
        content: dict[str, Any] = {"status": phase, "reason": self._state.reason}
        stats = self._state.engine.latest_stats
        if stats.bytes_to_load:
            content["loading"] = {"done": stats.loaded_bytes, "total": stats.bytes_to_load}
        response = json_response(content, 503)
        response.headers["Retry-After"] = "1"
        return response

    async def liveness(self) -> Response:
        """200 unless the engine has died; loading and draining are alive."""
        alive = self._state.phase != "engine_dead"
        return json_response({"alive": alive}, 200 if alive else 503)

    async def models(self, request: Request) -> Response:
        """The served model under each of its names; none that the key may not use."""
        cards = [self._card(name) for name in self._state.usable_names(request.scope)]
        return json_response(model_list(cards))

    async def model(self, name: str, request: Request) -> Response:
        """The served model, by one of its names."""
        served = self._state.settings.model_names
        if name not in served:
            raise unknown_model(name, served)
        if name not in self._state.usable_names(request.scope):
            raise no_access(name)
        return json_response(self._card(name))

    def _card(self, name: str) -> dict[str, Any]:
        ready, settings = self._state.engine.ready, self._state.settings
        length = ready.max_model_len if ready else None
        return model_card(name, settings.model, self._state.created, length)

    async def load(self) -> Response:
        """How many generating requests are open."""
        return json_response({"server_load": len(self._state.answers)})

    async def server_info(self) -> Response:
        """Version, settings (secrets masked) and what the engine says of the loaded model."""
        settings, ready = self._state.settings, self._state.engine.ready
        content = {
            "version": __version__,
            "phase": self._state.phase,
            "settings": {
                name: info.show(getattr(settings, name)) for name, info in options().items()
            },
            "engine": msgspec.to_builtins(ready) if ready else None,
        }
        return json_response(content)

    async def info(self) -> Response:
        """The model and its limits, as Text Embeddings Inference shows them."""
        ready = self._state.engine.ready
        if ready is None:
            raise self._state.not_ready()
        return json_response(model_info(self._state.settings, self._state.tokenizer, ready))

    async def tokenizer_info(self) -> Response:
        """tokenizer_config.json of the model, and the chat template in use."""
        tokenizer = self._state.tokenizer
        content = {
            "tokenizer_class": None,
            **tokenizer.config,
            "chat_template": tokenizer.chat_template,
            "vocab_size": tokenizer.vocab_size,
        }
        return json_response(content)

    async def metrics(self) -> Response:
        """Metrics for Prometheus, as text."""
        return Response(self._state.metrics.render(), media_type=CONTENT_TYPE)

    async def version(self) -> Response:
        """The version of RTP-LLM."""
        return json_response({"version": __version__})

    async def root(self, request: Request) -> Response:
        """What is served here, with a command to try and every endpoint; for browsers a chat."""
        if self._state.settings.page and asks_for_page("GET", "/", dict(request.headers.raw)):
            return send_page(request)
        name = self._state.settings.model_name
        url = str(request.base_url).rstrip("/")
        ready = self._state.engine.ready
        tasks = ready.tasks if ready else ("generate",)
        text = (
            f"RTP-LLM {__version__} serves {name!r} ({self._state.phase}).\n\n"
            f"{try_line(url, name, tasks, chat=self._state.has_chat)}\n\n"
            f"{list_endpoints(self._routes)}\n"
        )
        headers = {"Vary": "Accept"}
        return Response(text, headers=headers, media_type="text/plain; charset=utf-8")


def list_endpoints(routes: Iterable[BaseRoute]) -> str:
    """A line for each path: its methods and the first line of its handler's docstring."""
    verbs: dict[str, list[str]] = {}
    words: dict[str, str] = {}
    for route in routes:
        if isinstance(route, Route):
            verbs.setdefault(route.path, []).extend(sorted((route.methods or set()) - {"HEAD"}))
            words.setdefault(route.path, (route.endpoint.__doc__ or "").partition("\n")[0])
    rows = [(" ".join(verbs[path]), path.replace(":path", ""), words[path]) for path in verbs]
    first, second = (max(len(row[at]) for row in rows) for at in (0, 1))
    return "\n".join(f"{row[0]:{first}}  {row[1]:{second}}  {row[2]}".rstrip() for row in rows)


def try_line(url: str, model: str, tasks: Sequence[str], *, chat: bool) -> str:
    """A curl command to try the served model; `chat`: it has a chat template."""
    question = "What is 12 + 30?"
    messages = [{"role": "user", "content": question}]
    tries: dict[str, tuple[str, dict[str, Any]]] = {
        "embed": ("/v1/embeddings", {"input": question}),
        "score": ("/rerank", {"query": question, "documents": ["It is 42.", "It is late."]}),
        "classify": ("/classify", {"input": question}),
        "generate": ("/v1/completions", {"prompt": question, "max_tokens": 16}),
    }
    if chat:
        tries["generate"] = "/v1/chat/completions", {"messages": messages}
    first = "generate" if "generate" in tasks else tasks[0]
    path, wanted = tries.get(first, ("/pooling", {"input": question}))
    body = msgspec.json.encode({"model": model, **wanted}).decode().replace("'", "'\\''")
    if url.startswith(UNIX):
        url = f"--unix-socket {shlex.quote(url.removeprefix(UNIX))} http://localhost"
    return f"curl {url}{path} -H 'Content-Type: application/json' -d '{body}'"
