# SPDX-License-Identifier: Apache-2.0
"""TLS of the listener: certificate, key, client certificate authorities, and their renewal."""

from __future__ import annotations

import logging
import os
import ssl

from rtp_llm.config.options import flag_name
from rtp_llm.config.settings import Settings
from rtp_llm.server.http.start_error import StartError

_FILES = ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs")
_NEED_CERTIFICATE = ("ssl_keyfile", "ssl_ca_certs", "ssl_cert_reqs", "enable_ssl_refresh")

_log = logging.getLogger("rtp_llm.server")


def server_context(settings: Settings) -> ssl.SSLContext | None:
    """The TLS context, None without ssl_certfile; raises StartError for unusable files."""
    if settings.ssl_certfile is None:
        for name in _NEED_CERTIFICATE:
            if getattr(settings, name):
                raise StartError(f"{flag_name(name)} needs --ssl-certfile, the certificate itself")
        return None
    if settings.uds is not None:
        raise StartError("--uds needs no TLS; leave out --ssl-certfile, or listen on --port")
    if settings.ssl_cert_reqs and settings.ssl_ca_certs is None:
        raise StartError("--ssl-cert-reqs needs --ssl-ca-certs, which clients are checked against")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.VerifyMode(settings.ssl_cert_reqs)
    _load(context, settings)
    return context


def _load(context: ssl.SSLContext, settings: Settings) -> None:
    for name in _FILES:
        if (path := getattr(settings, name)) is not None:
            _check_readable(name, path)
    certificate, key = settings.ssl_certfile or "", settings.ssl_keyfile
    try:
        context.load_cert_chain(certificate, key, _no_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            text = "the key is not that of the certificate"
        else:
            text = "they have to be a certificate and its private key in PEM"
        shown = f"--ssl-certfile {certificate}, --ssl-keyfile {key or certificate}"
        raise StartError(f"{shown}: {text} ({error.reason or error})") from error
    if settings.ssl_ca_certs is not None:
        load_authorities(context, "ssl_ca_certs", settings.ssl_ca_certs)


def load_authorities(context: ssl.SSLContext, name: str, path: str) -> None:
    """Load the authorities in the file that the setting `name` gives; raises StartError."""
    _check_readable(name, path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        text = f"{flag_name(name)} {path}: it has to be certificates in PEM"
        raise StartError(f"{text} ({error.reason or error})") from error


def _check_readable(name: str, path: str) -> None:
    """Raise StartError for an unreadable file, as OpenSSL does not name it."""
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise StartError(f"{flag_name(name)}: cannot read {path}: {error.strerror}") from error


def _no_passphrase() -> str:
    """Refuse keys with a passphrase; otherwise OpenSSL would prompt for it on the terminal."""
    raise StartError("--ssl-keyfile: the key has a passphrase; take it off with `openssl pkey`")


class Renewal:
    """Reloads changed files into the context used for new connections."""

    def __init__(self, context: ssl.SSLContext, settings: Settings) -> None:
        self._context, self._settings = context, settings
        self._seen = self._look()

    def check(self) -> None:
        """Reload changed files; files that do not match, perhaps half-written, are ignored."""
        now = self._look()
        if now == self._seen:
            return
        self._seen = now
        try:
            server_context(self._settings)
            _load(self._context, self._settings)
        except StartError as error:
            _log.warning("the certificate stays as it was: %s", error)
        else:
            _log.info("%s was read again", self._settings.ssl_certfile)

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_state(getattr(self._settings, name)) for name in _FILES]


def _state(path: str | None) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path) if path is not None else None
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)
