# SPDX-License-Identifier: Apache-2.0
"""What a request's preparation is told of stored responses: it travels before the body."""

from __future__ import annotations

import struct
from typing import Any

import msgspec

_LENGTH = struct.Struct("<I")


class Context(msgspec.Struct, frozen=True):
    """`stores`: the server keeps responses; `history`: items of previous_response_id and all before
    it; `items`: those that the body refers to, by id."""

    stores: bool = False
    history: list[msgspec.Raw] = []
    items: dict[str, msgspec.Raw] = {}


class ReadContext(msgspec.Struct, frozen=True):
    """The same, as the preparation reads it."""

    stores: bool
    history: list[dict[str, Any]]
    items: dict[str, dict[str, Any]]


class Wanted(msgspec.Struct):
    """Of a body what decides whether stored responses are needed."""

    previous_response_id: str | None = None
    store: bool | None = None
    input: msgspec.Raw = msgspec.Raw(b"null")

    def references(self) -> set[str]:
        """Ids of the items that the input refers to."""
        try:
            items = msgspec.json.decode(self.input, type=list[_Reference])
        except msgspec.DecodeError:
            return set()
        return {item.id for item in items if item.type == "item_reference" and item.id}


class _Reference(msgspec.Struct):
    type: Any = None
    id: Any = None


def wanted_by(body: bytes) -> Wanted:
    """Of a body that is not well formed: nothing; its preparation says what is wrong with it."""
    try:
        return msgspec.json.decode(body, type=Wanted)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Wanted()


def join(context: Context, body: bytes) -> bytes:
    """Both as one."""
    head = msgspec.json.encode(context)
    return _LENGTH.pack(len(head)) + head + body


def split(joined: bytes) -> tuple[ReadContext, bytes]:
    """What `join` made one."""
    (length,) = _LENGTH.unpack_from(joined)
    end = _LENGTH.size + length
    return msgspec.json.decode(joined[_LENGTH.size : end], type=ReadContext), joined[end:]
