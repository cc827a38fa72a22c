# SPDX-License-Identifier: Apache-2.0
"""Server-sent events named by their type, as in Responses and Messages streams."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


def encode_events(events: Iterable[msgspec.Struct]) -> bytes:
    """Encode tagged structs as server-sent events."""
    return b"".join(
        b"event: %b\ndata: %b\n\n"
        % (str(type(each).__struct_config__.tag).encode(), msgspec.json.encode(each))
        for each in events
    )


def event(content: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + content + b"\n\n"
