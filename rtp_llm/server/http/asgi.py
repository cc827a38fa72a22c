# SPDX-License-Identifier: Apache-2.0
"""ASGI requests and responses, for the server and for the router in front of it."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.types import Message, Receive, Send

from rtp_llm.server.types.error_body import error_body
from rtp_llm.server.types.errors import ApiError

# Scope key: the answer is a stream of server-sent events, one complete event per message.
EVENT_STREAM = "rtp_llm.event_stream"
# Scope key: the id of the request, as in its answer and the logs.
REQUEST_ID = "rtp_llm.request_id"
_JSON = (b"content-type", b"application/json")


async def read_body(http: Request, limit: int) -> bytes:
    """Read the body; raises ApiError 413 as soon as it is known to exceed `limit` bytes."""
    parts: list[bytes] = []
    size = 0
    async for part in http.stream():
        size += len(part)
        if size > limit:
            raise too_large(limit)
        parts.append(part)
    return b"".join(parts)


def too_large(limit: int) -> ApiError:
    """A 413 error that closes the connection, as the rest of the body is not read."""
    message = f"The body is longer than {limit} bytes (see --max-request-bytes)."
    return ApiError(413, message, code="request_too_large", headers={"Connection": "close"})


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client disconnects; ignores anything else it sends."""
    while (await receive())["type"] != "http.disconnect":
        pass


def headers_only(send: Send) -> Send:
    """Wrap `send` for HEAD: ends the answer before its body, without waiting for the body."""

    async def send_head(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send_body(send, b"")

    return send_head


async def send_error(
    send: Send, error: ApiError, path: str = "", request_id: str | None = None
) -> None:
    """Send an error as the complete response of the endpoint `path`."""
    extra = [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
    await send_json(send, error.status, error_body(error, path, request_id), extra)


async def send_json(
    send: Send, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    """Send a complete JSON response."""
    length = (b"content-length", str(len(body)).encode())
    await send_start(send, status, [_JSON, length, *headers])
    await send_body(send, body)


async def send_start(send: Send, status: int, headers: list[tuple[bytes, bytes]]) -> None:
    """Send status and headers."""
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def send_body(send: Send, body: bytes, more: bool = False) -> None:
    """Send a piece of the body, the last one unless ``more``."""
    await send({"type": "http.response.body", "body": body, "more_body": more})
