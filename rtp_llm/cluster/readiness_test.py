# SPDX-License-Identifier: Apache-2.0
"""On a cluster the router is ready with its first replica, and says what the others are at."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest

from rtp_llm.cluster import part as module
from rtp_llm.cluster import replica
from rtp_llm.cluster.part import Part
from rtp_llm.cluster.run import _serve
from rtp_llm.config.settings import Settings
from rtp_llm.router.health import Health
from rtp_llm.server.http.listener import bind, url_of
from rtp_llm.testing.cluster.ray_cluster import FakeRay
from rtp_llm.testing.router.received import Received, until
from rtp_llm.testing.server.serving import demo_folder

LOADING = {"status": "starting", "loading": {"done": 250_000_000, "total": 10**9}}
TWO: dict[str, Any] = {"cluster": "auto", "data_parallel_size": 2, "port": 0}
AT_25 = "(placed on 127.0.0.1, loading its model: 25%, 250 of 1,000 MB)"
NO_ROOM = "(no room yet: it needs 1 CPU)"


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        body = msgspec.json.encode({} if self.server.part.loaded else LOADING)
        self.send_response(200 if self.server.part.loaded else 503)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *words: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    part: FakePart


class FakePart(Part):
    """Its process is a thread that answers /health."""

    loaded = False
    place_is_known = threading.Event()

    def __init__(self) -> None:
        super().__init__()
        self.exit_code: int | None = None
        self._ended = threading.Event()

    def place(self) -> Any:
        self.place_is_known.wait()
        return super().place()

    def start(self, model: str, environ: Mapping[str, str], key: str) -> None:
        # The host is the default one, which is not told.
        self._server = _Server(("127.0.0.1", int(environ["RTP_LLM_PORT"])), _Handler)
        self._server.part = self
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def end(self, exit_code: int) -> None:
        self.exit_code = exit_code
        self._ended.set()

    def wait(self) -> int:
        self._ended.wait()
        assert self.exit_code is not None
        return self.exit_code

    def stop(self) -> None:
        if hasattr(self, "_server"):
            self._server.shutdown()
            self._server.server_close()
        self.end(-9)
        super().stop()


class Cluster(FakeRay):
    """Its parts by their placement."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch, self._make)
        self.parts: list[FakePart] = []

    def _make(self) -> FakePart:
        self.parts.append(FakePart())
        return self.parts[-1]

    @property
    def is_empty(self) -> bool:
        return not self.groups and all(actor.killed for actor in self.actors)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(replica, "_HEALTH_SECONDS", 0.01)
    monkeypatch.setattr(replica, "_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(FakePart, "place_is_known", threading.Event())
    FakePart.place_is_known.set()
    yield Cluster(monkeypatch)
    FakePart.place_is_known.set()


@pytest.fixture
def received(
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> Received:
    return Received(capsys, caplog, monkeypatch)


def serve(test: Callable[[str], Any], **settings: Any) -> int:
    """The exit code after the test, which is given the driver's address, and Ctrl-C."""

    async def main() -> int:
        chosen = Settings(model="/model", **{**TWO, **settings})
        with bind(chosen) as listener:
            serving = asyncio.create_task(_serve(chosen, False, listener))
            await test(url_of(listener, chosen))
            os.kill(os.getpid(), signal.SIGINT)
            return await asyncio.wait_for(serving, 60)

    return asyncio.run(main())


def test_ready_is_said_when_the_first_replica_is(cluster: Cluster, received: Received) -> None:
    cluster.room = 1

    async def play(url: str) -> None:
        both = f"replica 0 {AT_25}; replica 1 {NO_ROOM}", f"replica 0 {NO_ROOM}; replica 1 {AT_25}"
        await until(lambda: len([each for each in received.pending if each in both]) >= 2)
        assert "is ready" not in received.printed and f"listens: {url}\n" in received.printed
        cluster.parts[0].loaded = True
        await until(lambda: f"RTP-LLM router is ready: {url}\n" in received.printed)
        await until(
            lambda: received.pending[-1] in (f"replica 1 {NO_ROOM}", f"replica 0 {NO_ROOM}")
        )

    assert serve(play) == 0
    assert cluster.is_empty


def test_ctrl_c_ends_one_that_waits_for_an_actor(cluster: Cluster, received: Received) -> None:
    FakePart.place_is_known.clear()

    async def play(_: str) -> None:
        await until(lambda: "replica 0 (placed, starting)" in "".join(received.pending))

    assert serve(play) == 130
    assert cluster.is_empty and "is ready" not in received.printed


@pytest.mark.parametrize("role", ["a machine", "a process"])
def test_a_lost_one_is_placed_again(cluster: Cluster, received: Received, role: str) -> None:
    async def play(_: str) -> None:
        await until(lambda: cluster.parts)
        cluster.parts[0].loaded = True
        await until(lambda: "is ready" in received.printed)
        if role == "a machine":
            cluster.actors[0].lose()
            reason = "The actor died."
        else:
            cluster.parts[0].end(3)
            reason = "its process ended with exit code 3"
        await until(lambda: f"replica 0 is lost: {reason}; it is placed again" in received.logged)
        await until(lambda: received.pending[-1:] == [f"replica 0 {AT_25}"])
        cluster.parts[1].loaded = True
        await until(lambda: received.logged.count("http://replica-0:80 takes requests") == 2)

    assert serve(play, data_parallel_size=1) == 0
    assert cluster.is_empty


def test_a_part_serves_at_the_port_that_it_holds(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = [sys.executable, "-m", "rtp_llm.testing.server.fake_server"]
    monkeypatch.setattr(module, "bound_command", lambda _, model: [*program, model])
    part = Part()
    try:
        place = part.place()
        assert part.health() == (None, "starting")
        own = {"HOST": place.host, "PORT": str(place.port), "LOG_FORMAT": "json"}
        environ = {f"RTP_LLM_{name}": value for name, value in own.items()}
        part.start(str(demo_folder()), environ, "")
        while (health := part.health()) != Health(200, "ready"):
            assert health.status in (None, 503)
            time.sleep(0.05)
    finally:
        part.stop()
    assert part.wait() == -signal.SIGKILL
