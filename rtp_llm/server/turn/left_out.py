# SPDX-License-Identifier: Apache-2.0
"""Replaces non-text parts of tool results, or refuses them."""

from __future__ import annotations

from rtp_llm.server.turn.parse import refused
from rtp_llm.server.types.errors import ApiError


class LeftOut:
    """Records in `kinds` what is left out of a request; unless `lenient`, it is refused."""

    def __init__(self, lenient: bool = True) -> None:
        self._lenient = lenient
        self.kinds: list[str] = []

    def text_for(self, kind: object, place: str) -> str:
        """The text that replaces a part of a tool result; raises ApiError 400 unless lenient."""
        if not self._lenient or not isinstance(kind, str):
            raise _refused(place)
        self.kinds.append(kind)
        return f"[{kind} left out: only text can be read here]"


def _refused(place: str) -> ApiError:
    return refused("tool results", place)
