# SPDX-License-Identifier: Apache-2.0
"""A server around a fake engine: in process for most tests, on a real port where that matters."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import cache, wraps
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import httpx
from fastapi.dependencies import models
from starlette.types import ASGIApp

from rtp_llm.config.settings import Settings
from rtp_llm.server.app import build_app
from rtp_llm.server.endpoint.server_state import ServerState
from rtp_llm.server.http.listener import bind, url_of
from rtp_llm.server.http.uvicorn_server import HttpServer
from rtp_llm.server.offload.preprocessor import Preprocessor
from rtp_llm.testing.model_folders import byte_level, with_bos, write_folder
from rtp_llm.testing.server.fake_engine import FakeEngine, say
from rtp_llm.testing.server.preparers import QuickForkClient
from rtp_llm.text.tokenizer import Tokenizer

TEXT = "Once upon a time there was a 😀 house."
CHAT = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}
JSON = {"Content-Type": "application/json"}  # of a body that is sent as bytes
PROMPT = {"model": "demo", "prompt": "Hello"}


@cache
def demo_folder() -> Path:
    return write_folder(Path(mkdtemp()) / "demo", with_bos(byte_level()))


@cache
def demo_tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(demo_folder())


def fake_engine(*texts: str, **kwargs: Any) -> FakeEngine:
    return FakeEngine(say(demo_tokenizer(), *(texts or (TEXT,))), **kwargs)


class Served:
    """One served state with an HTTP client on it."""

    def __init__(
        self, engine: FakeEngine, client: httpx.AsyncClient, state: ServerState, app: ASGIApp
    ) -> None:
        self.engine = engine
        self.client = client
        self.state = state
        self.app = app

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.client.post(path, json=body)

    async def chat(self, **body: Any) -> httpx.Response:
        return await self.post("/v1/chat/completions", **{**CHAT, **body})

    async def complete(self, **body: Any) -> httpx.Response:
        return await self.post("/v1/completions", **{**PROMPT, **body})


@contextlib.asynccontextmanager
async def served(
    engine: FakeEngine | None = None, tokenizer: Tokenizer | None = None, **settings: Any
) -> AsyncIterator[Served]:
    """In process, without a socket; `tokenizer`: of another folder, which `model` names then."""
    engine = engine or fake_engine()
    known = {"model": str(demo_folder()), "access_log": False, "served_model_name": "demo"}
    given = Settings(**{**known, **settings})
    state = ServerState(given, engine, preprocessor := Preprocessor(given, QuickForkClient))
    await engine.start(state.settings)
    state.open(tokenizer or demo_tokenizer())
    app = build_app(state)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        try:
            yield Served(engine, client, state, app)
        finally:
            await preprocessor.close()
            _forget_apps()


def _forget_apps() -> None:
    """FastAPI keeps facts about thousands of endpoints, and their servers with them."""
    for each in vars(models).values():
        if hasattr(each, "cache_clear"):
            each.cache_clear()


@contextlib.contextmanager
def listening(
    engine: FakeEngine,
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    tokenizer: Tokenizer | None = None,
    **settings: Any,
) -> Iterator[str]:
    """A real server on a loopback port, in a thread with its own loop; gives the base URL."""

    known = {"model": str(demo_folder()), "access_log": False, "served_model_name": "demo"}
    given = Settings(**{"port": 0, **known, **settings})
    state = ServerState(given, engine, preprocessor := Preprocessor(given, QuickForkClient))
    listener = bind(state.settings)
    server = HttpServer(build_app(state), state.settings)
    state.metrics.watch_connections(server.connections)

    async def run() -> None:
        await engine.start(state.settings)
        state.open(tokenizer or demo_tokenizer())
        await server.serve(sockets=[listener])
        await preprocessor.close()

    with in_thread(server, run, new_loop):
        yield url_of(listener, state.settings)


@contextlib.contextmanager
def in_thread(
    server: HttpServer,
    run: Callable[[], Coroutine[Any, Any, None]],
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
) -> Iterator[None]:
    """`run` serves with `server` in a thread with its own loop."""

    def work() -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(run())

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(10)


def events(body: str) -> list[Any]:
    """The events of a stream: JSON objects, and "[DONE]" as a text."""
    blocks = body.split("\n\n")
    assert blocks[-1] == ""
    assert all(block.startswith("data: ") for block in blocks[:-1])
    texts = [block.removeprefix("data: ") for block in blocks[:-1]]
    return [text if text == "[DONE]" else json.loads(text) for text in texts]


def wait_for(condition: Callable[[], object], seconds: float) -> None:
    """Return once something is so; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.005)


def run(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on a loop of its own."""

    @wraps(test)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return wrapper
