# SPDX-License-Identifier: Apache-2.0
"""The keys that a server accepts, from --api-key and --api-key-file; finds a request's key."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import time
from collections.abc import Mapping, Sequence

from starlette.types import Scope

from rtp_llm.config.options import SettingsError
from rtp_llm.config.settings import Settings
from rtp_llm.server.keys.key_file import Key, digest_of, read_key_file
from rtp_llm.server.keys.quota import Account
from rtp_llm.server.types.errors import ApiError, no_access

# Scope key: the Account of the request's key.
ACCOUNT = "rtp_llm.account"
ADMIN_PATHS = frozenset({"/metrics", "/server_info", "/start_profile", "/stop_profile"})
CHECK_SECONDS = 1.0

_log = logging.getLogger("rtp_llm.server")


def unnamed(sha256: str = "") -> Account:
    """An unlimited account: for --api-key, or for everybody if no key is required."""
    return Account(Key(name="", sha256=sha256, admin=True))


class KeyRing:
    """Finds the account of a request. Belongs to an event loop.

    The file is checked for changes on requests, at most once every CHECK_SECONDS. If it becomes
    unusable, that is logged and the previous keys stay valid.
    """

    def __init__(self, settings: Settings) -> None:
        """Raises SettingsError if the key file cannot be used."""
        self._path = settings.api_key_file
        self._blind = secrets.token_bytes(32)
        self._anyone = unnamed()
        self._owner: Account | None = None
        if settings.api_key is not None:
            self._owner = unnamed(digest_of(settings.api_key.encode()).hex())
        self._named: dict[str, Account] = {}
        self._index: dict[bytes, Account] = {}
        self._seen = self._stamp()
        self._next_check = time.monotonic() + CHECK_SECONDS
        self._take([] if self._path is None else read_key_file(self._path))

    @property
    def named(self) -> list[Account]:
        """The accounts of the key file."""
        return list(self._named.values())

    def find(self, headers: Mapping[bytes, bytes]) -> Account:
        """The account of a request; raises ApiError 401. ``headers``: with lower-case names."""
        self._reload()
        if not self._index:
            return self._anyone
        given = given_key(headers)
        digest = digest_of(given)
        account = self._index.get(self._place(digest))
        # The lookup reveals nothing about a digest to anyone who does not know self._blind.
        expected = account.key.sha256 if account else "0" * 64
        if hmac.compare_digest(digest.hex(), expected) and account is not None:
            return account
        message = "Incorrect API key." if given else "No API key given; send it as a Bearer token."
        raise ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})

    def _place(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, key=self._blind, digest_size=16).digest()

    def _take(self, keys: list[Key]) -> None:
        named = {}
        for key in keys:
            if account := self._named.get(key.name):
                account.change(key)
            named[key.name] = account or Account(key)
        self._named = named
        accounts = [*named.values(), *([self._owner] if self._owner else [])]
        self._index = {self._place(bytes.fromhex(each.key.sha256)): each for each in accounts}

    def _stamp(self) -> tuple[int, ...] | None:
        """A value that changes whenever the file does; None if the file does not exist."""
        if self._path is None:
            return None
        try:
            found = os.stat(self._path)
        except (OSError, ValueError):
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def _reload(self) -> None:
        if self._path is None or time.monotonic() < self._next_check:
            return
        self._next_check = time.monotonic() + CHECK_SECONDS
        stamp = self._stamp()
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            keys = read_key_file(self._path)
        except SettingsError as error:
            _log.error("%s; the keys stay as they were", error)
            return
        self._take(keys)
        _log.info("api_key_file: %d keys from %s", len(keys), self._path)


def given_key(headers: Mapping[bytes, bytes]) -> bytes:
    """The API key of a request, from OpenAI's header or Anthropic's."""
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        return key.strip()
    return headers.get(b"x-api-key", b"").strip() if not scheme else b""


def owner_of(scope: Scope) -> str:
    """An identifier for a request's owner that reveals nothing about the key."""
    account: Account = scope[ACCOUNT]
    return account.key.name or digest_of(given_key(dict(scope["headers"]))).hex()


def client_of(scope: Scope) -> str:
    """The client for fair sharing: a named key, or else an address."""
    account: Account | None = scope.get(ACCOUNT)
    if account is not None and account.key.name:
        return f"key {account.key.name}"
    return f"address {(scope.get('client') or ('',))[0]}"


def check_admin(path: str, account: Account) -> None:
    """Raise ApiError 403 for a path that needs an admin key, unless the account has one."""
    if path in ADMIN_PATHS and not account.key.admin:
        text = f"{path} needs a key with admin = true; that of {account.key.name!r} has not."
        raise ApiError(403, text, code="admin_key_required")


def check_priority(priority: int, account: Account) -> None:
    """Raise ApiError 403 for a request with raised priority unless its key is an admin key."""
    if priority < 0 and not account.key.admin:
        text = f"priority={priority} needs a key with admin = true; 0 is the most urgent otherwise."
        raise ApiError(403, text, param="priority", code="admin_key_required")


def usable(names: Sequence[str], account: Account | None) -> tuple[str, ...]:
    """The served names that the key may use; all of them without a key."""
    models = account.key.models if account else None
    return tuple(names if models is None else (name for name in names if name in models))


def check_model(names: Sequence[str], account: Account) -> None:
    """Raise ApiError 403 if the key may not use the model under any of its names."""
    if not usable(names, account):
        raise no_access(names[0])
