# SPDX-License-Identifier: Apache-2.0
"""HTTPS and Unix sockets: of a server, and of a router before it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from rtp_llm.config.settings import Settings
from rtp_llm.router.health import probe
from rtp_llm.router.run import route
from rtp_llm.router.workers import Worker
from rtp_llm.server.http.listener import bind, close
from rtp_llm.server.http.start_error import StartError
from rtp_llm.server.http.tls import Renewal, server_context
from rtp_llm.testing.router.routing import routing
from rtp_llm.testing.server.certificates import (
    LOCKED_KEY,
    SECOND,
    SECOND_KEY,
    write_certificates,
)
from rtp_llm.testing.server.serving import CHAT, PROMPT, TEXT, fake_engine, listening, wait_for
from rtp_llm.testing.server_processes import process


@pytest.fixture(name="files")
def _files(tmp_path: Path) -> dict[str, str]:
    return write_certificates(tmp_path)


@pytest.fixture(name="trusting")
def _trusting(tmp_path: Path, files: dict[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    context.load_cert_chain(str(tmp_path / "second.pem"), str(tmp_path / "second.key"))
    return context


@pytest.fixture(name="url", params=["server", "router"])
def _url(request: pytest.FixtureRequest, tmp_path: Path, files: dict[str, str]) -> Iterator[str]:
    """A router speaks TLS on both sides."""
    with listening(fake_engine(), max_request_bytes=1000, **files) as server:
        if request.param == "server":
            yield server
            return
        ca = {"worker_ca_certs": str(tmp_path / "ca.pem")}
        with routing(server, **ca, **files) as router:
            yield router


def test_answers_streams_and_errors(url: str, trusting: ssl.SSLContext) -> None:
    assert url.startswith("https://")
    with httpx.Client(base_url=url, verify=trusting, timeout=20) as client:
        answer = client.post("/v1/chat/completions", json=CHAT).json()
        assert answer["choices"][0]["message"]["content"] == TEXT
        stream = client.post("/v1/completions", json={**PROMPT, "stream": True}).text
        assert stream.endswith("data: [DONE]\n\n")
        assert client.post("/v1/completions", content=b"x" * 2000).status_code == 413
        assert client.get("/health").status_code == 200
        assert url in client.get("/").text
    with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
        httpx.get(f"{url}/health")


def test_who_sends_too_much_reads_the_answer(
    files: dict[str, str], trusting: ssl.SSLContext
) -> None:
    """TLS has no half-closed connection: the server waits for the other side to close."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with listening(fake_engine(), max_request_bytes=1000, **files) as url:
        host, port = url.removeprefix("https://").split(":")
        with (
            socket.create_connection((host, int(port)), 20) as plain,
            trusting.wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            connection.sendall(head + b"Content-Length: 2000000\r\n\r\n" + b"x" * 500_000)
            connection.sendall(b"x" * 1_500_000)
            assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_a_client_that_leaves_its_stream_aborts_it(
    files: dict[str, str], trusting: ssl.SSLContext
) -> None:
    engine = fake_engine(TEXT * 99, step_seconds=0.01)
    with listening(engine, **files) as url, httpx.Client(verify=trusting, timeout=20) as client:
        body = {**PROMPT, "stream": True}
        with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
            next(answer.iter_lines())
        wait_for(lambda: engine.aborted, 20)


def test_clients_show_their_certificates(
    tmp_path: Path, files: dict[str, str], trusting: ssl.SSLContext
) -> None:
    asks: dict[str, Any] = {**files, "ssl_ca_certs": str(tmp_path / "ca.pem"), "ssl_cert_reqs": 2}
    with listening(fake_engine(), **asks) as url:
        assert httpx.get(f"{url}/health", verify=trusting).status_code == 200
        nameless = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{url}/health", verify=nameless)


def test_a_client_that_begins_tls_and_says_no_more_is_left(
    files: dict[str, str],
) -> None:
    with listening(fake_engine(), header_timeout=0.2, **files) as url:
        host, port = url.removeprefix("https://").split(":")
        with socket.create_connection((host, int(port)), 20) as connection:
            assert connection.recv(1) == b""


def test_a_new_certificate_is_taken(tmp_path: Path, files: dict[str, str]) -> None:
    settings = Settings(enable_ssl_refresh=True, **files)
    context = server_context(settings)
    assert context is not None
    renewal = Renewal(context, settings)

    def shown() -> str:
        client = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        asking = client.wrap_bio(to_client, to_server, server_hostname="localhost")
        serving = context.wrap_bio(to_server, to_client, server_side=True)
        for side in (asking, serving, asking):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
        found: Any = asking.getpeercert()
        return str(found["subject"][0][0][1])

    assert shown() == "first"
    Path(files["ssl_certfile"]).write_text(SECOND)
    renewal.check()
    assert shown() == "first", "its key is still the old one"
    Path(files["ssl_keyfile"]).write_text(SECOND_KEY)
    renewal.check()
    assert shown() == "second"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ssl_certfile": "none.pem"}, "--ssl-certfile: cannot read none.pem: No such file"),
        ({"ssl_keyfile": "none.key"}, "--ssl-keyfile: cannot read none.key: No such file"),
        ({"ssl_keyfile": "{}/second.key"}, "the key is not that of the certificate"),
        ({"ssl_certfile": "{}/first.key"}, "have to be a certificate and its private key in PEM"),
        ({"ssl_keyfile": None}, "have to be a certificate and its private key in PEM"),
        ({"ssl_certfile": None}, "--ssl-keyfile needs --ssl-certfile"),
        ({"ssl_cert_reqs": 2}, "--ssl-cert-reqs needs --ssl-ca-certs"),
        ({"ssl_ca_certs": "{}/first.key"}, "first.key: it has to be certificates in PEM"),
        ({"uds": "/tmp/none"}, "--uds needs no TLS"),
    ],
)
def test_files_that_cannot_be_used_are_named(
    tmp_path: Path, files: dict[str, str], change: dict[str, Any], words: str
) -> None:
    given = {k: v.format(tmp_path) if isinstance(v, str) else v for k, v in change.items()}
    with pytest.raises(StartError) as raised:
        bind(Settings(port=0, **{**files, **given}))
    assert words in str(raised.value) and "\n" not in str(raised.value)


def test_a_key_with_a_passphrase_is_refused_without_asking(
    tmp_path: Path, files: dict[str, str]
) -> None:
    (tmp_path / "first.key").write_text(LOCKED_KEY)
    with pytest.raises(StartError, match="has a passphrase"):
        bind(Settings(port=0, **files))


def test_a_router_says_why_it_does_not_trust_a_worker(files: dict[str, str]) -> None:
    with listening(fake_engine(), **files) as url:
        health = asyncio.run(probe(Worker.parse(url)))
        assert health.status is None and "its certificate is not trusted" in health.words
        assert "--worker-ca-certs" in health.words
    with listening(fake_engine()) as plain:
        url = plain.replace("http:", "https:")
        assert "no TLS: " in asyncio.run(probe(Worker.parse(url))).words
    ca = Settings(workers=url, worker_ca_certs="none.pem")
    with pytest.raises(StartError, match="--worker-ca-certs: cannot read none"):
        route(ca)


def test_the_program_says_where_it_is(socket_folder: Path, files: dict[str, str]) -> None:
    path = socket_folder / "http.sock"
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in files.items()]
    with process(*flags) as secured, process("--uds", str(path)) as local:
        assert secured.url.startswith("https://127.0.0.1:")
        assert local.url == f"unix:{path}"
        local.wait_for(f"curl --unix-socket {path} http://localhost/v1/chat/completions")
        local.process.terminate()
        assert local.exit_code() == 0
        assert not path.exists()


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_unix_socket(socket_folder: Path, loop: Any) -> None:
    path = socket_folder / "http.sock"
    engine = fake_engine()
    with listening(engine, loop, uds=str(path), max_connections_per_client=1) as url:
        assert url == f"unix:{path}" and stat.S_ISSOCK(path.stat().st_mode)
        with pytest.raises(StartError, match="is in use by another program"):
            bind(Settings(uds=str(path)))
        transport = httpx.HTTPTransport(uds=str(path))
        base = {"base_url": "http://llm.example.com", "timeout": 20}
        with (
            httpx.Client(transport=transport, **base) as client,
            httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), **base) as other,
        ):
            for each in (client, other):
                answer = each.post("/v1/chat/completions", json=CHAT).json()
                assert answer["choices"][0]["message"]["content"] == TEXT
        with socket.socket(socket.AF_UNIX) as plain:
            plain.settimeout(20)
            plain.connect(str(path))
            plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert plain.recv(65536).startswith(b"HTTP/1.1 200 ")
        engine.allowed_steps = lambda: 0
        body = json.dumps(PROMPT).encode()
        with socket.socket(socket.AF_UNIX) as plain:
            plain.connect(str(path))
            head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            plain.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            wait_for(lambda: engine.streams, 20)
            plain.shutdown(socket.SHUT_WR)
        wait_for(lambda: engine.aborted, 20)


def test_what_a_killed_server_left_is_taken_over(socket_folder: Path) -> None:
    path = socket_folder / "http.sock"
    bind(Settings(uds=str(path))).close()
    assert path.exists()
    close(bind(Settings(uds=str(path))))
    assert not path.exists()
    path.write_text("mine")
    with pytest.raises(StartError, match="is not a socket"):
        bind(Settings(uds=str(path)))
    assert path.read_text() == "mine"
    with pytest.raises(StartError, match="--uds"):
        bind(Settings(uds=str(path.with_name("x" * 200))))
