# SPDX-License-Identifier: Apache-2.0
"""A request as the router needs to know it: which model, and what its prompt begins with."""

from __future__ import annotations

import codecs

import msgspec

from rtp_llm.router.workers import PIECE_BYTES
from rtp_llm.server.anthropic.protocol import BILLING

# What of a prompt is compared with earlier ones; the rest counts by its length.
COMPARED_BYTES = 2**18
# What takes long to be read, see below.
LONG_BYTES = 2**23
_NOTHING = msgspec.Raw(b"")


class _Body(msgspec.Struct):
    """Only where these fields are is looked for: the rest is skipped, not decoded."""

    model: msgspec.Raw = _NOTHING
    instructions: msgspec.Raw = _NOTHING  # of Responses
    system: msgspec.Raw = _NOTHING  # of Messages, and of Ollama's API
    messages: msgspec.Raw = _NOTHING
    prompt: msgspec.Raw = _NOTHING
    input: msgspec.Raw = _NOTHING  # of Responses


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
    leading = _without_billing(bytes(fields.instructions or fields.system))
    rest = memoryview(fields.messages or fields.prompt or fields.input)
    prompt = leading + bytes(rest[: max(0, COMPARED_BYTES - len(leading))])
    return Wanted(_name_in(fields.model), _text_in(prompt), len(leading) + len(rest))


def _without_billing(system: bytes) -> bytes:
    """Without the block that no server reads, and that would make every prompt a new one."""
    at = system[: 2 * PIECE_BYTES].find(BILLING.encode())
    return system if at < 0 else system[system.find(b"}", at) + 1 :]


def _name_in(raw: msgspec.Raw) -> str | None:
    try:
        return _NAME.decode(raw) if raw else None
    except ValueError:
        return None


def _text_in(prompt: bytes) -> bytes:
    compared = prompt[:COMPARED_BYTES]
    try:
        codecs.utf_8_decode(compared, "strict", False)
    except UnicodeError:
        return b""
    return compared
