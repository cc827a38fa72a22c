# SPDX-License-Identifier: Apache-2.0
"""Server-sent events that are named by their type, as Responses and Messages stream them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


def encode_events(events: Iterable[msgspec.Struct]) -> bytes:
    """Tagged structs as they are sent."""
    return b"".join(
        b"event: %b\ndata: %b\n\n"
        % (str(type(each).__struct_config__.tag).encode(), msgspec.json.encode(each))
        for each in events
    )
