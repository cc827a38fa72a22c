# SPDX-License-Identifier: Apache-2.0
"""Request headers: the host, the body's type and encoding, and the request id."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import zlib
from collections.abc import Mapping

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope

from rtp_llm.config.roles import is_loopback
from rtp_llm.config.settings import Settings
from rtp_llm.server.http.open_requests import Body, BufferBody
from rtp_llm.server.keys.quota import LIMIT_HEADERS
from rtp_llm.server.types.errors import ApiError, bad_request

# A client's request id that is kept as it is: short and printable.
_ID = re.compile(rb"[!-~]{1,128}")
_JSON_TYPE = re.compile(r"application/(?:[\w.+-]+\+)?json")
# Bytes to decompress before yielding to the event loop.
_PIECE_BYTES = 2**18


class HostCheck:
    """Refuses requests with a foreign Host header if no key protects the server.

    A web page can point its own domain name at this machine, and a browser then treats this server
    as the page's origin (DNS rebinding). Addresses and names without a dot cannot be abused like
    that. Servers that listen on all addresses, or require a key, accept every name.
    """

    def __init__(self, settings: Settings) -> None:
        allowed = {name.strip().lower() for name in settings.allowed_hosts.split(",")} - {""}
        self._allowed = allowed | {settings.host.lower()}
        self._accepted: bytes | None = None  # the last one; most requests name the same
        self._checks = (
            settings.api_key is None
            and settings.api_key_file is None
            and settings.uds is None
            and "*" not in allowed
            and is_loopback(settings.host)
        )

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise ApiError 403 for a foreign host; ``headers`` have lower-case names."""
        given = headers.get(b"host", b"")
        if not self._checks or given == self._accepted:
            return
        host = given.decode("latin-1").strip().lower()
        name = host if host.endswith("]") else re.sub(r":\d*$", "", host)
        name = name.removesuffix(".")
        known = "." not in name or name.endswith(".localhost") or name in self._allowed
        if known or _is_address(name):
            self._accepted = given
            return
        raise ApiError(
            403,
            f"The Host header names {name[:100]!r}, which this server does not answer to: it "
            "listens on loopback without a key. Set --allowed-hosts, or an --api-key.",
            code="host_not_allowed",
        )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def check_content_type(headers: Mapping[bytes, bytes]) -> None:
    """Raise ApiError 415 unless the body is declared as JSON.

    Browsers send cross-site requests of simple types freely, but ask first before they send JSON.
    """
    header = headers.get(b"content-type", b"")
    if header == b"application/json":
        return
    given = header.decode("latin-1")
    if _JSON_TYPE.fullmatch(given.partition(";")[0].strip().lower()):
        return
    said = f"{given[:100]!r}" if given else "missing"
    raise ApiError(
        415,
        f"The body must be JSON, but its Content-Type is {said}; send the header "
        "'Content-Type: application/json' (curl: -H 'Content-Type: application/json').",
        code="unsupported_media_type",
        headers={"Accept": "application/json"},
    )


def kept_request_id(headers: Mapping[bytes, bytes]) -> str | None:
    """The client's X-Request-Id, if it is short and printable."""
    given = headers.get(b"x-request-id", b"")
    return given.decode("ascii") if given and _ID.fullmatch(given) else None


def decoded(headers: Mapping[bytes, bytes], receive: Receive, limit: int) -> Receive:
    """Wrap ``receive`` to decode the body's Content-Encoding, up to one byte above ``limit``.

    Raises ApiError 415 for encodings other than gzip; the result raises 400 for corrupt data.
    """
    encoding = headers.get(b"content-encoding", b"").strip().lower()
    if encoding in (b"", b"identity"):
        return receive
    if encoding not in (b"gzip", b"x-gzip"):
        raise ApiError(
            415,
            f"The Content-Encoding {encoding.decode('latin-1')[:100]!r} is not understood; send "
            "the body as it is, or in gzip.",
            code="unsupported_media_type",
            headers={"Accept-Encoding": "gzip"},
        )
    return _Gunzip(receive, limit)


class _Gunzip:
    """Decompresses a body in pieces, yielding to the event loop between them."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive, self._left = receive, limit + 1
        self._stream = zlib.decompressobj(16 + zlib.MAX_WBITS)
        self._rest, self._complete = b"", False

    async def __call__(self) -> Message:
        """The next part of the body, at most _PIECE_BYTES long."""
        if self._complete:
            return await self._receive()
        more = True
        if not self._rest:
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            self._rest, more = message.get("body", b""), message.get("more_body", False)
            self._more = more
        data = self._inflate()
        await asyncio.sleep(0)
        self._complete = not (self._rest or self._more) or not self._left
        if self._complete and self._left and not self._stream.eof:
            raise _broken()
        return {"type": "http.request", "body": data, "more_body": not self._complete}

    def _inflate(self) -> bytes:
        if self._stream.eof:
            self._rest = b""  # data after the end of the gzip stream is ignored
            return b""
        try:
            data = self._stream.decompress(self._rest, min(_PIECE_BYTES, self._left))
        except zlib.error as error:
            raise _broken() from error
        self._rest = self._stream.unconsumed_tail
        self._left -= len(data)
        return data


def _broken() -> ApiError:
    return bad_request("The body is no valid gzip stream.", code="invalid_encoding")


class _Cors(CORSMiddleware):
    def buffer_body(self, scope: Scope) -> Body | None:
        """See BufferBody: the application decides."""
        ask: BufferBody | None = getattr(self.app, "buffer_body", None)
        return ask(scope) if ask else None


def with_cors(app: ASGIApp, settings: Settings) -> ASGIApp:
    """Add CORS for ``cors_origins``; the browser's preflight request needs no key."""
    origins = [origin.strip() for origin in settings.cors_origins.split(",") if origin.strip()]
    if not origins:
        return app
    return _Cors(
        app,
        allow_origins=origins,
        allow_methods=["GET", "HEAD", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=["X-Request-Id", "Request-Id", "Retry-After", *LIMIT_HEADERS],
        max_age=600,
    )
