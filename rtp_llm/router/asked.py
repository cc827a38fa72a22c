"""A request as the router needs to know it: which model, and what its prompt begins with."""

from __future__ import annotations

import codecs

import msgspec

# What of a prompt is compared with earlier ones; the rest counts by its length.
COMPARED_BYTES = 2**18
# What takes long to be read, see below.
LONG_BYTES = 2**23
_NOTHING = msgspec.Raw(b"")


class _Body(msgspec.Struct):
    """Only where these fields are is looked for: the rest is skipped, not decoded."""

    model: msgspec.Raw = _NOTHING
    messages: msgspec.Raw = _NOTHING
    prompt: msgspec.Raw = _NOTHING


_BODY = msgspec.json.Decoder(_Body)
_NAME = msgspec.json.Decoder(str)


class Wanted(msgspec.Struct, frozen=True):
    """``model``: its name, None where none is given. ``prompt``: the beginning of its JSON;
    ``length``: bytes of all of it. ``readable``: the body is a JSON object."""

    model: str | None = None
    prompt: bytes = b""
    length: int = 0
    readable: bool = True


def read_wanted(body: bytes) -> Wanted:
    """What a body asks for; nothing where it is no JSON object, as the server will say.

    Takes 5 ms for each MiB at most.
    """
    try:
        fields = _BODY.decode(body)
    except (ValueError, OverflowError, RecursionError):
        return Wanted(readable=False)
    raw = memoryview(fields.messages or fields.prompt)
    return Wanted(_name_in(fields.model), _text_in(raw), len(raw))


def _name_in(raw: msgspec.Raw) -> str | None:
    try:
        return _NAME.decode(raw) if raw else None
    except ValueError:
        return None


def _text_in(raw: memoryview) -> bytes:
    compared = bytes(raw[:COMPARED_BYTES])
    try:
        codecs.utf_8_decode(compared, "strict", False)
    except UnicodeError:
        return b""
    return compared
