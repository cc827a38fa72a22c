# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.0 requests, whose clients (nginx's proxy by default) do not support chunks."""

from __future__ import annotations

from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send


def without_chunks(cycle: Any, app: ASGIApp) -> ASGIApp:
    """Wrap `app` for uvicorn's `cycle`: closing the connection ends an answer without a length."""
    cycle.keep_alive = False
    cycle.waiting_for_100_continue = False  # RFC 9110, 10.1.1: to be ignored in an HTTP/1.0 request

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        endless = False

        async def unchunked(message: Message) -> None:
            nonlocal endless
            if message["type"] == "http.response.start":
                names = [name.lower() for name, _ in message.get("headers", ())]
                endless = b"content-length" not in names
                if endless:
                    cycle.chunked_encoding = False
            elif endless:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, unchunked)

    return called
