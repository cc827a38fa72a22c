# SPDX-License-Identifier: Apache-2.0
"""What a client gets when a worker fails, and who else gets its request: nobody, as a rule."""

from __future__ import annotations

import asyncio
import json

import pytest

from rtp_llm.router import backoff, forward, reply
from rtp_llm.router.workers import Worker
from rtp_llm.testing.router.workers import Behaviour, Case, Fake, play, well

SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n"
REFUSED = b"HTTP/1.1 503 No\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"


def says(*parts: bytes, ends: bool = True) -> Behaviour:
    """It sends these chunks of a stream, and ends it or hangs up."""

    async def behave(fake: Fake, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE)
        for part in parts:
            writer.write(b"%x\r\n%s\r\n" % (len(part), part))
            await writer.drain()
            await asyncio.sleep(0.01)
        if ends:
            writer.write(b"0\r\n\r\n")
            await writer.drain()

    return behave


async def hangs_up(fake: Fake, writer: asyncio.StreamWriter) -> None:
    """Lives on."""


async def dies(fake: Fake, writer: asyncio.StreamWriter) -> None:
    """Its listening socket goes with it."""
    fake.server.close()


async def breaks_off(fake: Fake, writer: asyncio.StreamWriter) -> None:
    writer.write(JSON + b'{"choices":[')
    await writer.drain()


def refuses(code: str) -> Behaviour:
    async def behave(fake: Fake, writer: asyncio.StreamWriter) -> None:
        body = json.dumps({"error": {"message": "no", "code": code}}).encode()
        writer.write(REFUSED % (len(body), body))
        await writer.drain()

    return behave


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ((b"data: 1\n\n", b"data: 2\n\n"), b"data: 1\n\ndata: 2\n\n"),
        ((b"data: 1\n\nda", b"ta: 2"), b"data: 1\n\n"),
        ((b"data: 1\r\n\r\ndata:",), b"data: 1\r\n\r\n"),
        ((b"data: " + b"x" * 100, b"yz"), b"data: " + b"x" * 100 + b"\n\n"),
    ],
    ids=["between", "amid", "crlf", "long"],
)
def test_a_stream_that_breaks_ends_with_an_error_event(
    parts: tuple[bytes, ...], whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the last whole event; an event too long to be kept is ended first."""
    monkeypatch.setattr(reply, "EVENT_BYTES", 64)

    async def test(case: Case) -> None:
        status, body = await case.ask()
        assert status == 200 and body.startswith(whole)
        last = body[len(whole) :]
        assert last.startswith(b"data: ") and last.endswith(b"\n\n")
        error = json.loads(last.removeprefix(b"data: "))["error"]
        assert error["code"] == "worker_failed" and error["type"] == "server_error"
        assert case.requests == [1, 0]

    play(test, says(*parts, ends=False), well)


def test_errors_keep_to_the_protocol_of_messages() -> None:
    async def test(case: Case) -> None:
        status, body = await case.ask(path="/v1/messages")
        last = body.removeprefix(b"event: ping\ndata: 1\n\n")
        assert status == 200 and last.startswith(b"event: error\ndata: ")
        error = json.loads(last.partition(b"data: ")[2])
        assert (error["type"], error["error"]["type"]) == ("error", "api_error")
        status, body = await case.ask(path="/v1/messages/count_tokens")
        assert (status, json.loads(body)["type"]) == (502, "error")

    play(test, says(b"event: ping\ndata: 1\n\n", ends=False), breaks_off)


def test_a_whole_stream_passes_as_it_is() -> None:
    parts = (b"data: 1\n\nda", b"ta: 2\n", b"\ndata: [DONE]\n\nrest")

    async def test(case: Case) -> None:
        assert await case.ask() == (200, b"".join(parts))

    play(test, says(*parts))


def test_half_an_answer_that_is_no_stream_becomes_an_error() -> None:
    async def test(case: Case) -> None:
        status, body = await case.ask()
        assert (status, json.loads(body)["error"]["code"]) == (502, "worker_failed")
        assert case.requests == [1, 0]

    play(test, breaks_off, well)


def test_half_of_a_long_answer_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its head went out: the client sees that the length is not what was promised."""
    monkeypatch.setattr(reply, "HELD_BYTES", 4)

    async def test(case: Case) -> None:
        with pytest.raises(OSError, match="broke its answer off"):
            await case.ask()

    play(test, breaks_off)


def test_a_worker_that_lives_and_gives_no_answer_keeps_its_request() -> None:
    async def test(case: Case) -> None:
        status, body = await case.ask()
        assert (status, json.loads(body)["error"]["code"]) == (502, "worker_failed")
        assert case.requests == [1, 0]
        assert not case.metric("retries_total")

    play(test, hangs_up, well)


def test_a_request_moves_from_a_worker_that_died_and_only_once() -> None:
    async def test(case: Case) -> None:
        status, body = await case.ask()
        assert (status, json.loads(body)["error"]["code"]) == (502, "worker_failed")
        assert case.requests == [1, 1, 0]
        dead = case.fakes[0].url
        assert case.metric("retries_total") == [
            f'rtp_llm_router_retries_total{{reason="lost",worker="{dead}"}} 1.0'
        ]
        assert await case.ask() == (200, b"fine")

    play(test, dies, dies, well)


@pytest.mark.parametrize(
    ("code", "requests"), [("queue_full", [1, 1, 1]), ("engine_dead", [1, 1, 0])]
)
def test_a_refusal_after_admission_counts_as_a_move(code: str, requests: list[int]) -> None:
    """An engine may have died of the request."""

    async def test(case: Case) -> None:
        status, body = await case.ask()
        assert case.requests == requests
        assert (status, body) == (200, b"fine") if requests[2] else b"engine_dead" in body

    play(test, refuses(code), refuses(code), well)


def test_a_worker_that_failed_several_times_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]

    async def test(case: Case) -> None:
        bad, url = case.workers.all[0], case.fakes[0].url
        for each in case.workers.all:
            each.backoff = backoff.Backoff(lambda: now[0])
        for _ in range(backoff.MAX_FAILURES):
            assert (await case.ask())[0] == 502
            case.heal()
        assert bad.backoff.state == "open"
        assert await case.ask() == (200, b"fine")
        assert f'rtp_llm_router_worker_backoff_state{{worker="{url}"}} 2.0' in case.metric(
            "worker_backoff_state"
        )
        assert b"left out for 1 s" in (await case.ask(path="/", method="GET"))[1]
        now[0] += backoff.FIRST_SECONDS
        assert bad.backoff.state == "half_open"
        assert (await case.ask())[0] == 502  # the trial
        case.heal()
        assert bad.backoff.seconds_left == 2 * backoff.FIRST_SECONDS
        now[0] += 2 * backoff.FIRST_SECONDS
        case.fakes[0]._behave = well
        assert await case.ask() == (200, b"fine")
        assert bad.backoff.state == "closed" and bad.backoff.failures == 0
        assert case.fakes[0].requests == backoff.MAX_FAILURES + 2

    play(test, hangs_up, well)


def test_one_request_at_a_time_is_a_trial() -> None:
    now = [0.0]
    one = backoff.Backoff(lambda: now[0])
    for _ in range(50):  # that were open when it died: they are one failure's worth of time
        one.failed()
    assert one.seconds_left == backoff.FIRST_SECONDS and not one.admits
    now[0] += backoff.FIRST_SECONDS
    assert one.admits and one.begin() and not one.admits
    one.end(True)  # the client left: nothing is known
    assert one.admits and one.begin()
    one.answered()
    assert one.state == "closed" and one.admits
    one.failed()
    assert one.state == "open" and one.seconds_left == 2 * backoff.FIRST_SECONDS
    for _ in range(20):
        now[0] += one.seconds_left
        one.failed()
    assert one.seconds_left == backoff.MAX_SECONDS


def test_every_failure_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(worker: Worker) -> bool:
        return False

    monkeypatch.setattr(forward, "is_gone", gone)

    async def test(case: Case) -> None:
        await case.ask()
        url = case.fakes[0].url
        assert case.metric("failures_total") == [
            f'rtp_llm_router_failures_total{{reason="lost",worker="{url}"}} 1.0'
        ]
        assert case.metric("requests_total") == [
            f'rtp_llm_router_requests_total{{code="502",worker="{url}"}} 1.0'
        ]

    play(test, hangs_up)
