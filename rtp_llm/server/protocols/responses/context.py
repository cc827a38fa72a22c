# SPDX-License-Identifier: Apache-2.0
"""Stored responses as context for preparing a request; it is sent in front of the body."""

from __future__ import annotations

import struct
from typing import Any

import msgspec

_LENGTH = struct.Struct("<I")


class Context(msgspec.Struct, frozen=True):
    """`stores`: the server keeps responses; `history`: all items up to and including
    previous_response_id; `items`: the items that the body refers to, by id."""

    stores: bool = False
    history: list[msgspec.Raw] = []
    items: dict[str, msgspec.Raw] = {}


class ReadContext(msgspec.Struct, frozen=True):
    """The same context, as decoded by the preparation."""

    stores: bool
    history: list[dict[str, Any]]
    items: dict[str, dict[str, Any]]


class Wanted(msgspec.Struct):
    """The parts of a body that decide whether stored responses are needed."""

    previous_response_id: str | None = None
    store: bool | None = None
    input: msgspec.Raw = msgspec.Raw(b"null")

    def references(self) -> set[str]:
        """Ids of the items that the input references."""
        try:
            items = msgspec.json.decode(self.input, type=list[_Reference])
        except msgspec.DecodeError:
            return set()
        return {item.id for item in items if item.type == "item_reference" and item.id}


class _Reference(msgspec.Struct):
    type: Any = None
    id: Any = None


def wanted_by(body: bytes) -> Wanted:
    """Read these parts; empty for a malformed body, which its preparation will report."""
    try:
        return msgspec.json.decode(body, type=Wanted)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Wanted()


def join(context: Context, body: bytes) -> bytes:
    """Join context and body into one."""
    head = msgspec.json.encode(context)
    return _LENGTH.pack(len(head)) + head + body


def split(joined: bytes) -> tuple[ReadContext, bytes]:
    """Split the result of `join` into context and body."""
    (length,) = _LENGTH.unpack_from(joined)
    end = _LENGTH.size + length
    return msgspec.json.decode(joined[_LENGTH.size : end], type=ReadContext), joined[end:]
