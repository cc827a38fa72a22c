# SPDX-License-Identifier: Apache-2.0
"""The file of --api-key-file: one table per key, with the key's digest but never the key."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import tomllib
from typing import Annotated

import msgspec

from rtp_llm.config.options import SettingsError

MAX_BYTES = 2**20
MAX_KEYS = 1000
_OTHERS = stat.S_IRWXG | stat.S_IRWXO

Limit = Annotated[int, msgspec.Meta(ge=1, le=10**12)]
Name = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")]


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The permissions and limits of one key; None means no limit.

    ``weight``: its share of the engine relative to other keys. ``concurrency``: maximum number of
    open requests. ``models``: the models it may use, None: all. ``admin``: it may also read the
    server's statistics. ``share_cache``: keys with the same value share cached prompts; None: no
    sharing.
    """

    name: Name
    sha256: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    weight: Annotated[float, msgspec.Meta(ge=0.01, le=100)] = 1.0
    concurrency: Limit | None = None
    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None
    models: list[str] | None = None
    admin: bool = False
    share_cache: Name | None = None

    @property
    def cache_scope(self) -> str:
        """A prefix of a request's ``cache_salt``: requests share blocks only if both are equal.

        It ends with its first line break, so that no salt can imitate another key's scope.
        """
        if self.share_cache is not None:
            return f"group:{self.share_cache}\n"
        # A key without a digest stands for requests that need no key.
        return f"key:{self.name}\n" if self.sha256 else ""


class _KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: Annotated[list[Key], msgspec.Meta(min_length=1, max_length=MAX_KEYS)]


def digest_of(key: bytes) -> bytes:
    """The SHA-256 of a key; keys are random, so no salt or slow hash is needed."""
    return hashlib.sha256(key).digest()


def read_key_file(path: str) -> list[Key]:
    """Read the keys of a TOML file with at least one ``[[keys]]`` table.

    Raises SettingsError if the file cannot be read, is not a regular file, is accessible to users
    other than its owner, or is malformed.
    """
    text = _read_private(path)
    try:
        keys = msgspec.convert(tomllib.loads(text.decode()), _KeyFile).keys
    except ValueError as error:  # TOML, UTF-8 or msgspec errors: none of them quotes a digest
        raise SettingsError(f"api_key_file: {path!r}: {error}") from error
    for what in ("name", "sha256"):
        values = [getattr(key, what) for key in keys]
        if twice := next((key.name for key in keys if values.count(getattr(key, what)) > 1), None):
            raise SettingsError(f"api_key_file: {path!r}: two keys have the {what} of {twice!r}")
    return keys


def _read_private(path: str) -> bytes:
    try:
        # Non-blocking, so that a pipe is refused instead of waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"api_key_file: cannot read {path!r}: {reason}") from error
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise SettingsError(f"api_key_file: {path!r} is not a regular file")
        if mode & _OTHERS:
            raise SettingsError(
                f"api_key_file: others can use {path!r} (mode {stat.S_IMODE(mode):o}); chmod 600 it"
            )
        with open(descriptor, "rb", closefd=False) as file:
            text = file.read(MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(text) > MAX_BYTES:
        raise SettingsError(f"api_key_file: {path!r} is longer than {MAX_BYTES} bytes")
    return text


def new_key(name: str) -> tuple[str, str]:
    """Make a random key and its table for the file. Raises SettingsError for an invalid name."""
    key = f"sk-{secrets.token_urlsafe(32)}"
    try:
        table = msgspec.convert({"name": name, "sha256": digest_of(key.encode()).hex()}, Key)
    except msgspec.ValidationError as error:
        text = "up to 64 letters, digits, dots, dashes and underscores, the first no sign"
        raise SettingsError(f"NAME: {name!r} is not {text}") from error
    return key, f'[[keys]]\nname = "{table.name}"\nsha256 = "{table.sha256}"\n'
