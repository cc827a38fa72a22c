# SPDX-License-Identifier: Apache-2.0
"""What a tool returned that is not a text, for servers that go on without it."""

from __future__ import annotations

from rtp_llm.server.errors import ApiError
from rtp_llm.server.prepare.parse import refused


class LeftOut:
    """Notes what is left out of one request: `kinds`. Not `lenient`: it is refused instead."""

    def __init__(self, lenient: bool = True) -> None:
        self._lenient = lenient
        self.kinds: list[str] = []

    def text_for(self, kind: object, place: str) -> str:
        """What the model reads instead of a part of a tool's result; raises ApiError 400."""
        if not self._lenient or not isinstance(kind, str):
            raise _refused(place)
        self.kinds.append(kind)
        return f"[{kind} left out: only text can be read here]"


def _refused(place: str) -> ApiError:
    return refused("tool results", place)
