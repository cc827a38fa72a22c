# SPDX-License-Identifier: Apache-2.0
"""Settings of the server's listener: TLS, a Unix socket, the path prefix of a proxy."""

from __future__ import annotations

from dataclasses import dataclass

from rtp_llm.config.options import option


@dataclass(frozen=True, kw_only=True)
class ListenerSettings:
    """The group of Settings for connections."""

    uds: str | None = option(
        None,
        "text",
        "server",
        "Path of a Unix socket to listen on in place of host and port.",
        automatic="host and port",
        advanced=True,
    )
    root_path: str = option(
        "",
        "text",
        "server",
        "Prefix under which a reverse proxy offers this server, with or without taking it off: "
        "/llm. It is in /openapi.json and in the address that / shows.",
        advanced=True,
    )
    ssl_certfile: str | None = option(
        None,
        "text",
        "server",
        "PEM file of the certificate to serve HTTPS with, followed by its chain of authorities.",
        automatic="HTTP without TLS",
        advanced=True,
    )
    ssl_keyfile: str | None = option(
        None,
        "text",
        "server",
        "PEM file of its private key, without a passphrase.",
        automatic="in ssl_certfile",
        advanced=True,
    )
    ssl_ca_certs: str | None = option(
        None,
        "text",
        "server",
        "PEM file of the authorities that sign clients' certificates.",
        automatic="none",
        advanced=True,
    )
    ssl_cert_reqs: int = option(
        0,
        "integer",
        "server",
        "Certificates of clients, as Python's ssl module numbers it: 0 asks for none, 1 checks "
        "one that is given, 2 refuses clients without one.",
        minimum=0,
        maximum=2,
        advanced=True,
    )
    enable_ssl_refresh: bool = option(
        False,
        "switch",
        "server",
        "Read the files of TLS again when they change, within ten seconds; new connections have "
        "the new certificate.",
        advanced=True,
    )
