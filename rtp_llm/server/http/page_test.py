# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gzip
import re
from pathlib import Path

import httpx
import pytest

from rtp_llm.server.http.page import BUNDLE
from rtp_llm.testing.server.serving import Served, run, served

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
LOADED = ("page.js", "page.css", "icon.svg")


async def page_of(server: Served, **headers: str) -> httpx.Response:
    return await server.client.get("/", headers={**HTML, **headers})


@run
async def test_browsers_get_the_page_and_others_the_list_of_endpoints() -> None:
    async with served() as server:
        page, listing = await page_of(server), await server.client.get("/")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert page.text.startswith("<!doctype html>")
        assert "Accept" in page.headers["vary"] and "Accept" in listing.headers["vary"]
        assert listing.headers["content-type"].startswith("text/plain")
        assert "GET" in listing.text and "/page/{name}" in listing.text
        head = await server.client.head("/", headers=HTML)
        assert head.status_code == 200 and head.headers["etag"] == page.headers["etag"]


@run
async def test_all_that_the_page_loads_is_there_and_nothing_from_elsewhere() -> None:
    async with served() as server:
        page = await page_of(server)
        named = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        assert named == ["page/icon.svg", "page/page.css", "page/page.js"]
        for address in named:
            answer = await server.client.get(f"/{address}")
            assert answer.status_code == 200
            assert answer.content == (BUNDLE / Path(address).name).read_bytes()
        assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=", page.text)


@run
async def test_headers_of_the_page() -> None:
    async with served() as server:
        for answer in [
            await page_of(server),
            *[await server.client.get(f"/page/{name}") for name in LOADED],
        ]:
            policy = dict(
                rule.strip().split(" ", 1)
                for rule in answer.headers["content-security-policy"].split(";")
            )
            assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
            assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
            assert policy["require-trusted-types-for"] == "'script'"
            assert policy["trusted-types"] == "'none'"
            assert "unsafe" not in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert answer.headers["cache-control"] == "no-cache"


@run
async def test_gzip_for_those_who_take_it() -> None:
    async with served() as server:
        for name in LOADED:
            plain = await server.client.get(
                f"/page/{name}", headers={"Accept-Encoding": "br, gzip;q=0"}
            )
            assert "content-encoding" not in plain.headers
            stream = server.client.stream(
                "GET", f"/page/{name}", headers={"Accept-Encoding": "br;q=1.0, gzip;q=0.8"}
            )
            async with stream as zipped:
                raw = b"".join([part async for part in zipped.aiter_raw()])
            assert zipped.headers["content-encoding"] == "gzip"
            assert zipped.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"
            assert zipped.headers["etag"] != plain.headers["etag"]
            assert gzip.decompress(raw) == plain.content


@run
async def test_what_a_browser_has_already_is_not_sent_again() -> None:
    async with served() as server:
        first = await server.client.get("/page/page.js")
        tag = first.headers["etag"]
        for known in (tag, f'"other", {tag}', f"W/{tag}", "*"):
            again = await server.client.get("/page/page.js", headers={"If-None-Match": known})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == tag
            assert again.headers["content-security-policy"]
        other = await server.client.get("/page/page.js", headers={"If-None-Match": '"other"'})
        assert other.status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/page/nothing.js",
        "/page/sources.sha256",
        "/page/..%2Fpage.py",
        "/page/../page.py",
        "/page/a/page.js",
        "/page",
        "/page/%00",
    ],
)
@run
async def test_nothing_else_of_the_disk_is_served(path: str) -> None:
    async with served() as server:
        answer = await server.client.get(path)
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "unknown_endpoint"


@run
async def test_other_methods_are_refused() -> None:
    async with served() as server:
        for path in ("/", "/page/page.js"):
            answer = await server.client.post(path, headers=HTML, json={})
            assert answer.status_code == 405


@run
async def test_a_server_with_a_key_shows_the_page_and_nothing_more() -> None:
    async with served(api_key="sesame") as server:
        assert (await page_of(server)).status_code == 200
        for name in LOADED:
            assert (await server.client.get(f"/page/{name}")).status_code == 200
        assert (await server.client.get("/")).status_code == 401  # names the model
        assert (await server.client.post("/", headers=HTML)).status_code == 401
        for path in ("/v1/models", "/server_info", "/pages", "/metrics"):
            assert (await server.client.get(path, headers=HTML)).status_code == 401


@run
async def test_page_off() -> None:
    async with served(page=False) as server:
        assert (await page_of(server)).headers["content-type"].startswith("text/plain")
        assert (await server.client.get("/page/page.js")).status_code == 404
    async with served(page=False, api_key="sesame") as server:
        assert (await page_of(server)).status_code == 401
        assert (await server.client.get("/page/page.js")).status_code == 401
