# SPDX-License-Identifier: Apache-2.0
"""GET / for browsers, and the files that the page loads: bundle/, each sent whole from memory."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

# In wheels the bundle lies next to this file; a source tree has it in page/.
_IN_WHEEL = Path(__file__).with_name("bundle")
_IN_SOURCES = Path(__file__).parents[3] / "page" / "bundle"
BUNDLE = _IN_WHEEL if _IN_WHEEL.is_dir() else _IN_SOURCES
FILES = "/page/"
_KINDS = {
    "index.html": "text/html; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "licenses.txt": "text/plain; charset=utf-8",
}
# Its own files and its own server, nothing else. With `trusted-types 'none'` the browser also
# refuses to make HTML of any text: what a model says can become text nodes only.
_HEADERS = {
    "Cache-Control": "no-cache",  # asks each time, and is mostly told 304
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True)
class _File:
    """`tag`: names its content, without quotes."""

    kind: str
    plain: bytes
    zipped: bytes
    tag: str


def asks_for_page(method: str, path: str, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request wants the page or a file of it, which have no secrets and need no key.

    At `/` a client that does not ask for HTML gets the list of endpoints. `headers` with names in
    lower case.
    """
    if method not in ("GET", "HEAD"):
        return False
    if path == "/":
        return b"text/html" in headers.get(b"accept", b"")
    return path.startswith(FILES)


def send_page(request: Request) -> Response:
    """The page itself; its addresses are relative to `/`."""
    response = _send(_file("index.html"), request)
    response.headers["Vary"] = "Accept, Accept-Encoding"
    return response


async def send_file(request: Request, name: str) -> Response:
    """A file that the page at / loads."""
    if name not in _KINDS:
        raise HTTPException(404)
    return _send(_file(name), request)


@cache
def _file(name: str) -> _File:
    plain = (BUNDLE / name).read_bytes()
    tag = hashlib.sha256(plain).hexdigest()[:32]
    return _File(_KINDS[name], plain, gzip.compress(plain, 9, mtime=0), tag)


def _send(file: _File, request: Request) -> Response:
    zipped = _takes_gzip(request.headers.get("accept-encoding", ""))
    tag = f'"{file.tag}-gzip"' if zipped else f'"{file.tag}"'
    headers = {**_HEADERS, "ETag": tag, "Vary": "Accept-Encoding"}
    if _knows(request.headers.get("if-none-match", ""), tag):
        return Response(status_code=304, headers=headers)
    if zipped:
        headers["Content-Encoding"] = "gzip"
    return Response(file.zipped if zipped else file.plain, 200, headers, media_type=file.kind)


def _takes_gzip(header: str) -> bool:
    for each in header.lower().split(","):
        name, _, weight = each.partition(";")
        if name.strip() in ("gzip", "*"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _knows(header: str, tag: str) -> bool:
    known = {each.strip().removeprefix("W/") for each in header.split(",")}
    return "*" in known or tag in known
