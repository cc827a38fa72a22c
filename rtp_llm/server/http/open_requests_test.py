# SPDX-License-Identifier: Apache-2.0
"""However many clients there are, and however slow: so many are served, the others hear 503."""

from __future__ import annotations

import asyncio
import contextlib
import json

import httpx
import pytest
from starlette.types import Message

from rtp_llm.config.settings import Settings
from rtp_llm.server.http.open_requests import SMALL_BYTES, OpenRequests
from rtp_llm.testing.server.serving import JSON, fake_engine, listening, run, wait_for
from rtp_llm.testing.server.slow_clients import BODY, crowd

MOST, CLIENTS = 5, 40


def is_taken(url: str, size: int = len(BODY)) -> bool:
    body = BODY[:size].ljust(size)
    answer = httpx.post(f"{url}/v1/completions", content=body, headers=JSON)
    if answer.status_code == 503:
        assert answer.json()["error"]["code"] == "overloaded"
        assert answer.headers["retry-after"] == "1"
    return answer.status_code == 200


def test_so_many_are_open_at_once() -> None:
    engine = fake_engine()
    engine.allowed_steps = lambda: 0
    with listening(engine, max_open_requests=MOST) as url, crowd(url, MOST, len(BODY)) as first:
        wait_for(lambda: len(engine.streams) == MOST, 20)
        with crowd(url, CLIENTS, 700) as others:
            assert all(client.was_refused() for client in others)
        assert not is_taken(url)
        assert httpx.get(f"{url}/health").status_code == 200
        assert 'code="503"' in httpx.get(f"{url}/metrics").text
        first[0].leave()  # its place is another one's
        wait_for(lambda: len(engine.streams) == MOST - 1, 20)
        engine.allowed_steps = lambda: 10**9
        assert all(client.answer()[0] == 200 for client in first[1:])
        assert is_taken(url)


@pytest.mark.parametrize(
    "bound",
    [
        {"max_open_requests": MOST},
        {"max_open_bytes": MOST * 700 + 800, "max_request_bytes": 1000},
    ],
    ids=["requests", "bytes"],
)
def test_slow_bodies_hold_up_nobody(bound: dict[str, int]) -> None:
    """So many bodies arrive at once; the oldest make way, and a whole one is taken all the time."""
    with listening(fake_engine(), **bound) as url, crowd(url, CLIENTS, 700) as clients:
        assert is_taken(url)
        # The last of them may have made way for that one.
        assert all(client.was_refused() for client in clients[:-MOST])
        assert is_taken(url)
        assert httpx.get(f"{url}/health").status_code == 200
        for client in clients[-MOST + 1 :]:
            client.finish()
            assert client.answer()[0] == 200


def test_one_body_may_be_as_long_as_any() -> None:
    """Whatever is said of all of them."""
    with listening(fake_engine(), max_open_bytes=1) as url:
        assert is_taken(url)


@pytest.mark.parametrize("rate", [0, 10**6])
def test_who_says_too_little_of_its_body_loses_its_place(rate: int) -> None:
    """Nothing, or a byte now and then."""
    bound = {"body_timeout": 0.2, "min_body_rate": rate}
    with listening(fake_engine(), max_open_requests=1, **bound) as url, crowd(url, 1, 700) as one:
        for _ in range(10 if rate else 0):
            with contextlib.suppress(OSError):  # it was refused by now
                one[0].say(1)
        status, head, body = one[0].answer()
        assert status == 408 and b"connection: close" in head
        assert json.loads(body)["error"]["code"] == "request_timeout"
        assert is_taken(url)


@run
async def test_large_bodies_that_are_whole_at_once_go_on_one_by_one() -> None:
    requests, size, taken = OpenRequests(Settings(model="m")), SMALL_BYTES + 1, 0

    async def whole() -> Message:
        nonlocal taken
        taken += 1
        return {"type": "http.request", "body": b" " * size, "more_body": False}

    async def read() -> None:
        body = requests.expect(lambda: None)
        assert body.grow(size)
        await body.open(whole)()

    reading = asyncio.gather(*(read() for _ in range(20)))
    while not reading.done():
        before = taken
        await asyncio.sleep(0)
        assert taken <= before + 1, "others have a turn in between"
    assert taken == 20
