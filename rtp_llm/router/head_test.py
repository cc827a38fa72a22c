# SPDX-License-Identifier: Apache-2.0
"""HEAD on what GET answers: the same headers, without the body."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from rtp_llm.testing.router.routing import routing
from rtp_llm.testing.server.serving import fake_engine, listening

OTHERS = (
    "/",
    "/docs",
    "/openapi.json",
    "/ping",
    "/page/page.js",
    "/v1/models/demo",
    "/v1/models/x",
)
CHANGING = {"date", "x-request-id"}
STORED = {"input": "Hello", "background": True, "stream": True}


@pytest.fixture(name="client", scope="module", params=["server", "router"])
def _client(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    engine = fake_engine()
    engine.allowed_steps = lambda: 0
    with listening(engine, max_stored_responses=4) as server, routing(server) as router:
        url = server if request.param == "server" else router
        with httpx.Client(base_url=url, timeout=20) as client:
            yield client


def paths(client: httpx.Client) -> list[str]:
    described = client.get("/openapi.json").json()["paths"]
    gets = [path for path, methods in described.items() if "get" in methods and "{" not in path]
    return [*gets, *OTHERS]


def test_headers_are_those_of_get(client: httpx.Client) -> None:
    checked = 0
    for path in paths(client):
        got, head = client.get(path), client.head(path)
        assert head.status_code == got.status_code, path
        length = {"content-length"} if path == "/metrics" else set()
        shown = [
            {k: v for k, v in each.headers.items() if k not in CHANGING | length}
            for each in (got, head)
        ]
        assert shown[0] == shown[1], path
        assert head.content == b"" and got.content
        checked += 1
    assert checked > 15


def test_head_of_a_stream_does_not_wait_for_its_end(client: httpx.Client) -> None:
    with client.stream("POST", "/v1/responses", json=STORED) as stream:
        line = next(each for each in stream.iter_lines() if each.startswith("data: "))
        name = line.partition('"id":"')[2].partition('"')[0]
        for query in ("?stream=true", ""):
            head = client.head(f"/v1/responses/{name}{query}")
            kind = "text/event-stream" if query else "application/json"
            assert head.status_code == 200 and head.headers["content-type"].startswith(kind)
