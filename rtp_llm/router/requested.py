# SPDX-License-Identifier: Apache-2.0
"""The parts of a request that routing needs: its model, and the beginning of its prompt."""

from __future__ import annotations

import codecs

import msgspec

from rtp_llm.router.workers import PIECE_BYTES
from rtp_llm.server.protocols.anthropic.protocol import BILLING

# The prefix of a prompt that is compared with earlier ones; of the rest only the length counts.
COMPARED_BYTES = 2**18
# Fields that take long to read, see below.
LONG_BYTES = 2**23
_NOTHING = msgspec.Raw(b"")


class _Body(msgspec.Struct):
    """Only these fields are located; everything else is skipped, not decoded."""

    model: msgspec.Raw = _NOTHING
    instructions: msgspec.Raw = _NOTHING  # of Responses
    system: msgspec.Raw = _NOTHING  # of Messages, and of Ollama's API
    messages: msgspec.Raw = _NOTHING
    prompt: msgspec.Raw = _NOTHING
    input: msgspec.Raw = _NOTHING  # of Responses


_BODY = msgspec.json.Decoder(_Body)
_NAME = msgspec.json.Decoder(str)


class Requested(msgspec.Struct, frozen=True):
    """``model``: the requested name, or None. ``prompt``: the first bytes of the prompt's JSON;
    ``length``: its full size in bytes. ``readable``: whether the body is a JSON object."""

    model: str | None = None
    prompt: bytes = b""
    length: int = 0
    readable: bool = True


def read_requested(body: bytes) -> Requested:
    """Read model and prompt from a body; empty if not a JSON object, which the server reports.

    Takes at most 5 ms per MiB.
    """
    try:
        fields = _BODY.decode(body)
    except (ValueError, OverflowError, RecursionError):
        return Requested(readable=False)
    leading = _without_billing(bytes(fields.instructions or fields.system))
    rest = memoryview(fields.messages or fields.prompt or fields.input)
    prompt = leading + bytes(rest[: max(0, COMPARED_BYTES - len(leading))])
    return Requested(_name_in(fields.model), _text_in(prompt), len(leading) + len(rest))


def _without_billing(system: bytes) -> bytes:
    """Drop the billing block, which no server reads and which would make every prompt look new."""
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
