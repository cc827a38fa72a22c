# SPDX-License-Identifier: Apache-2.0
"""Servers without a model, many in one process: the workers of a router under test.

As a program: COUNT STEPS_PER_SECOND. Prints the ports as JSON, then serves on loopback until it is
ended. A POST is answered with a stream of `max_tokens` events, of which each step sends one to
every open stream, as an engine does.
"""

from __future__ import annotations

import asyncio
import json
import sys

# Of the size that a chunk of a chat has.
_CHUNK = {
    "id": "chatcmpl-0123456789abcdef0123456789abcdef",
    "object": "chat.completion.chunk",
    "created": 1750000000,
    "model": "fake",
    "choices": [{"index": 0, "delta": {"content": " word"}, "finish_reason": None}],
    "usage": None,
}
_OK = b"HTTP/1.1 200 OK\r\nconnection: close\r\n"
_HEAD = _OK + b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_MODELS = b'{"object":"list","data":[{"id":"fake","object":"model"}]}'
_PAGE = _OK + b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s"


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _event(content: object) -> bytes:
    return _framed(b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n")


EVENT = _event(_CHUNK)
_END = _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class _Workers:
    """The open streams of all ports: how many events each has had, and how many it gets."""

    def __init__(self) -> None:
        self._streams: dict[asyncio.StreamWriter, tuple[int, int]] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, which carries one request."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET"):
                writer.write(_PAGE % (len(_MODELS), _MODELS))
                writer.close()
                return
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            self._begin(writer, json.loads(await reader.readexactly(length))["max_tokens"])
        except (asyncio.IncompleteReadError, ConnectionError):  # a router that ends
            writer.close()

    def _begin(self, writer: asyncio.StreamWriter, tokens: int) -> None:
        writer.write(_HEAD)
        self._streams[writer] = (0, tokens)
        self._send(writer)

    def _send(self, writer: asyncio.StreamWriter) -> None:
        sent, tokens = self._streams.pop(writer)
        writer.write(EVENT)
        if sent + 1 < tokens:
            self._streams[writer] = (sent + 1, tokens)
            return
        usage = {"completion_tokens": tokens, "total_tokens": tokens}
        writer.write(_event({"choices": [], "usage": usage}) + _END)
        writer.close()

    async def step(self, steps_per_second: float) -> None:
        """Send an event to every stream, at that pace."""
        while True:
            await asyncio.sleep(1 / steps_per_second)
            for writer in list(self._streams):
                self._send(writer)


async def _main(count: int, steps_per_second: float) -> None:
    workers = _Workers()
    servers = [await asyncio.start_server(workers.serve, "127.0.0.1", 0) for _ in range(count)]
    print(json.dumps([each.sockets[0].getsockname()[1] for each in servers]), flush=True)
    await workers.step(steps_per_second)


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), float(sys.argv[2])))
