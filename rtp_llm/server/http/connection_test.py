# SPDX-License-Identifier: Apache-2.0
"""What one connection can make the server hold, and how long it can make it wait: both end."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator

import pytest

from rtp_llm.server.http import connection as http_protocol
from rtp_llm.testing.server.connections import Listener, Wire
from rtp_llm.testing.server.serving import run

GET = b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n"
CHUNKED = POST % b"Transfer-Encoding: chunked"
READ = 2**18  # bytes in one read of the loop


async def turns(number: int = 10) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def refused(wire: Wire, status: int, code: str) -> bool:
    """An error in the API's shape, and then only our half is closed."""
    head, body = wire.sent.split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 %d " % status), head
    assert b"connection: close" in head and json.loads(body)["error"]["code"] == code
    return wire.ended and not wire.closed


def pieces(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), READ):
        yield data[start : start + READ]


HEADS = {
    "one long header": b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 2**22,
    "a long address": b"GET /" + b"x" * 2**22,
    "one without a name": b"GET / HTTP/1.1\r\n" + b"x" * 2**22,
    "many": b"GET / HTTP/1.1\r\n" + b"".join(b"a%d: b\r\n" % i for i in range(2**17)),
    "long ones": b"GET / HTTP/1.1\r\n" + (b"a: %s\r\n" % (b"x" * 8000)) * 99,
    "trailers": CHUNKED + b"0\r\n" + b"a: b\r\n" * 2**17,
    "empty lines": b"\r\n" * 2**21,
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
@run
async def test_headers_have_an_end(head: bytes) -> None:
    listener = Listener()
    protocol, wire = listener.connect()
    fed = 0
    for piece in pieces(head):
        protocol.data_received(piece)
        await turns(2)
        fed += len(piece)
        if wire.sent:
            break
    assert fed <= 2 * READ, "it was refused as soon as it was too long"
    assert refused(wire, 431, "headers_too_large")
    assert listener.pool.refused == {"headers": 1}
    assert all(len(scope["headers"]) <= 100 for scope in listener.scopes)
    await turns()
    assert not wire.paused, "the rest is dropped, so that the client can read the answer"


@run
async def test_headers_up_to_the_limit_are_taken() -> None:
    listener = Listener()
    listener.answer.set()
    protocol, wire = listener.connect()
    lines = [b"a%d: %s" % (i, b"x" * 150) for i in range(99)]
    head = b"\r\n".join([b"GET / HTTP/1.1", b"Host: x", *lines, b"", b""])
    for _ in range(3):
        for byte in range(0, len(head), 999):
            protocol.data_received(head[byte : byte + 999])
        await turns()
    assert wire.sent.count(b"HTTP/1.1 200") == 3 and not listener.pool.refused
    assert len(listener.scopes[2]["headers"]) == 100


@pytest.mark.parametrize("sent", [b"G", b"GET / HTTP/1.1\r\nHost: x\r\n", b"\r\n", GET % 1 + b"G"])
@run
async def test_slow_headers_are_refused(sent: bytes) -> None:
    """The clock starts with the first byte, and later bytes do not reset it."""
    listener = Listener(header_timeout=10)
    listener.answer.set()
    protocol, wire = listener.connect()
    protocol.data_received(sent)
    await turns()
    before = wire.sent.count(b"HTTP/1.1 200")
    listener.sweep(9)
    assert wire.sent.count(b"HTTP/1.1") == before
    protocol.data_received(b"\r\n" if sent == b"\r\n" else b"E")
    listener.sweep(10.1)
    wire.sent = wire.sent.rpartition(b"HTTP/1.1 408")[2]
    wire.sent = b"HTTP/1.1 408" + wire.sent
    assert refused(wire, 408, "request_timeout")


@run
async def test_silent_connections_are_closed() -> None:
    """New ones, those between two requests, and those that owe the rest of an answered body."""
    listener = Listener(keep_alive_timeout=30)
    listener.answer.set()
    (silent, quiet), (idle, rested), (owing, unread) = (listener.connect() for _ in range(3))
    idle.data_received(GET % 1)
    owing.data_received(b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nx")
    await turns()
    assert len(listener.pool.open) == 3
    listener.sweep(http_protocol.REST_SECONDS + 0.1)
    assert unread.closed and not quiet.closed and not rested.closed
    listener.sweep(30.1)
    assert quiet.closed and rested.closed and quiet.sent == b""
    for protocol in (silent, idle, owing):
        protocol.connection_lost(None)
    assert not listener.pool.open and not listener.pool._waiting


@run
async def test_a_body_that_comes_after_its_answer_keeps_the_connection() -> None:
    listener = Listener()
    listener.answer.set()
    protocol, wire = listener.connect()
    for _ in range(3):
        protocol.data_received(b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nx")
        await turns()
        protocol.data_received(b"x" * 9)
        await turns()
        listener.sweep(http_protocol.REST_SECONDS + 0.1)
    assert wire.sent.count(b"HTTP/1.1 200") == 3 and not wire.closed


@run
async def test_so_many_requests_wait_on_one_connection() -> None:
    """The others are not even parsed; those that wait are answered, in their order, and no more."""
    listener = Listener()
    protocol, wire = listener.connect()
    protocol.data_received(b"".join(GET % number for number in range(9000)))
    protocol.data_received(GET % 1 * 5000)
    await turns()
    most = http_protocol.MAX_PIPELINED
    assert len(protocol.pipeline) == most and wire.paused
    assert listener.pool.refused == {"pipelined": 1}
    listener.answer.set()
    await turns(200)
    assert [scope["path"] for scope in listener.scopes] == [f"/{i}" for i in range(most + 1)]
    assert wire.sent.count(b"HTTP/1.1 200") == most + 1
    assert wire.sent.count(b"connection: close") == 1 and wire.ended


@run
async def test_a_waiting_request_stops_the_reading() -> None:
    """Also while the one before it waits for its client to leave."""
    listener = Listener()
    protocol, wire = listener.connect()
    protocol.data_received(POST % b"Content-Length: 3" + b"abc")
    await turns()
    assert not wire.paused
    protocol.data_received(POST % b"Content-Length: 9")
    leaving = asyncio.ensure_future(protocol._active.receive())
    await turns()
    assert wire.paused, "its body waits in the socket"
    listener.answer.set()
    await leaving
    await turns()
    assert not wire.paused
    protocol.data_received(b"123456789")
    await turns()
    assert listener.bodies == [3, 9] and wire.sent.count(b"HTTP/1.1 200") == 2


@pytest.mark.parametrize("chunk", [b"1\r\nx\r\n", b"1;%s\r\nx\r\n" % (b"e" * 999)])
@run
async def test_tiny_chunks_are_refused(chunk: bytes) -> None:
    listener = Listener()
    protocol, wire = listener.connect()
    protocol.data_received(CHUNKED)
    fed = 0
    while not wire.sent:
        protocol.data_received(chunk * (READ // len(chunk)))
        await turns(3)
        fed += READ
    assert refused(wire, 400, "invalid_http") and fed <= 2 * READ
    await turns()
    assert listener.gone == ["/"], "the handler does not wait for the rest"


@run
async def test_ordinary_chunks_are_taken() -> None:
    listener = Listener()
    listener.answer.set()
    protocol, wire = listener.connect()
    protocol.data_received(CHUNKED)
    for _ in range(2000):
        protocol.data_received(b"40\r\n" + b"x" * 64 + b"\r\n")
        await turns(1)
    protocol.data_received(b"0\r\nTrailer: x\r\n\r\n")
    await turns()
    assert listener.bodies == [64 * 2000] and wire.sent.startswith(b"HTTP/1.1 200")
    assert (b"trailer", b"x") not in listener.scopes[0]["headers"]


@run
async def test_who_waits_longest_makes_way() -> None:
    """Connections whose request is being answered never do."""
    listener = Listener(max_connections=3)
    busy, answering = listener.connect()
    busy.data_received(GET % 1)
    slow, slow_wire = listener.connect()
    slow.data_received(POST % b"Content-Length: 100" + b"x")
    silent, silent_wire = listener.connect()
    await turns()
    _, newest = listener.connect()
    assert refused(slow_wire, 503, "overloaded")
    slow.connection_lost(None)
    await turns()
    assert listener.gone == ["/"] and not silent_wire.ended
    listener.connect()
    assert refused(silent_wire, 503, "overloaded") and not newest.ended
    silent.connection_lost(None)
    assert len(listener.pool.open) == 3 and not answering.closed
    assert listener.pool.refused == {"evicted": 2}


@run
async def test_where_all_are_busy_a_new_one_is_refused() -> None:
    listener = Listener(max_connections=2)
    for number in range(2):
        protocol, _ = listener.connect()
        protocol.data_received(GET % number)
    for _ in range(50):
        _, wire = listener.connect()
        assert refused(wire, 503, "overloaded") and b"retry-after: 1" in wire.sent.lower()
    assert len(listener.pool.open) == 52
    listener.answer.set()
    await turns()
    assert len(listener.scopes) == 2


@run
async def test_one_address_has_so_many() -> None:
    listener = Listener(max_connections_per_client=2)
    mine = [listener.connect("192.0.2.1") for _ in range(3)]
    _, other = listener.connect("192.0.2.2")
    assert refused(mine[2][1], 503, "overloaded")
    assert not any(wire.sent for wire in (mine[0][1], mine[1][1], other))
    for protocol, _ in mine:
        protocol.connection_lost(None)
    assert not listener.connect("192.0.2.1")[1].sent
    assert dict(listener.pool._per_client) == {"192.0.2.1": 1, "192.0.2.2": 1}


@run
async def test_who_does_not_read_is_cut_off() -> None:
    """A client that reads slowly is none who does not read."""
    listener = Listener(stream_stall_timeout=30)
    protocol, wire = listener.connect()
    protocol.data_received(GET % 1)
    await turns()
    wire.unsent = 70_000
    protocol.pause_writing()
    for seconds in range(0, 200, 20):
        wire.unsent -= 1
        listener.sweep(seconds)
    assert not wire.closed
    listener.sweep(180 + 29)
    assert not wire.closed
    listener.sweep(180 + 31)
    assert wire.aborted and listener.pool.refused == {"stalled": 1}
    protocol.connection_lost(None)
    assert not listener.pool.open


@run
async def test_what_the_system_holds_counts_as_unread() -> None:
    """However little it is; a client that reads, or has read all, is left alone."""
    listener = Listener(stream_stall_timeout=30)
    listener.answer.set()
    protocol, wire = listener.connect()
    system = wire._extra["socket"] = Holding()  # type: ignore[attr-defined]
    protocol.data_received(GET % 1)
    await turns()
    protocol._active.response_complete = False  # a stream that goes on
    protocol._deadline = math.inf
    listener.sweep(100)
    system.unsent, wire.unsent = 5, 0
    for seconds in range(120, 300, 20):
        system.acknowledged += 1
        system.unsent += 7
        listener.sweep(seconds)
    system.unsent += 1000
    listener.sweep(280 + 29)
    assert not wire.closed
    listener.sweep(280 + 31)
    assert wire.aborted and listener.pool.refused == {"stalled": 1}


class Holding:
    """A socket of which the system says how much it holds."""

    acknowledged = unsent = 0

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        info = bytearray(size)
        info[0] = 1
        info[120:128] = self.acknowledged.to_bytes(8, "little")
        info[144:148] = self.unsent.to_bytes(4, "little")
        return bytes(info)


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (GET % 1, True),
        (b"GET / HT", False),
        (POST % b"Content-Length: 3" + b"ab", False),
        (b"", False),
    ],
    ids=["whole", "head", "body", "nothing"],
)
@run
async def test_a_closed_half_keeps_what_can_be_answered(sent: bytes, kept: bool) -> None:
    listener = Listener()
    protocol, wire = listener.connect()
    wire._extra["socket"] = Established()  # type: ignore[attr-defined]
    protocol.data_received(sent)
    await turns()
    assert protocol.eof_received() is kept
    assert wire.sent == (b"HTTP/1.1 100 Continue\r\n\r\n" if kept else b"")
    listener.sweep(1)
    assert not wire.closed
    if kept:
        listener.answer.set()
        await turns()
        assert b"HTTP/1.1 200" in wire.sent and wire.closed
    protocol.connection_lost(None)
    await turns()
    assert listener.gone == (["/"] if b"ab" in sent else [])


class Established:
    """A socket as the system sees it."""

    state = 1

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        return bytes([self.state])


@run
async def test_who_closed_both_halves_is_found_out() -> None:
    listener = Listener()
    protocol, wire = listener.connect()
    peer = wire._extra["socket"] = Established()  # type: ignore[attr-defined]
    protocol.data_received(GET % 1)
    await turns()
    assert protocol.eof_received()
    listener.sweep(1)
    assert not wire.closed
    peer.state = 7  # its system answered our line with a reset
    listener.sweep(2)
    assert wire.aborted
