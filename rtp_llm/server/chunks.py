"""What streamed and whole answers of both endpoints have in common."""

from __future__ import annotations

import time
import uuid
from typing import Any

import msgspec

from rtp_llm.server.generation import Usage

_json = msgspec.json.encode
DONE = b"data: [DONE]\n\n"


def answer_head(prefix: str, kind: str, model: str) -> dict[str, Any]:
    """id, object, created and model of a new answer."""
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
    }


def usage_content(usage: Usage) -> dict[str, Any]:
    """The usage object."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def event(content: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + content + b"\n\n"


class ChunkFrame:
    """Writes the chunks of one stream; what is the same in all of them is encoded once."""

    def __init__(self, head: dict[str, Any], include_usage: bool) -> None:
        self._head = b"data: " + _json(head)[:-1] + b',"choices":['
        self._tail = b"]" + (b',"usage":null' if include_usage else b"") + b"}\n\n"
        self._include_usage = include_usage

    def chunk(self, choice: bytes) -> bytes:
        """The event that carries one choice, given as JSON."""
        return self._head + choice + self._tail

    def end(self, usage: Usage) -> bytes:
        """The usage chunk, if asked for, and the end mark."""
        if not self._include_usage:
            return DONE
        return self._head + b'],"usage":' + _json(usage_content(usage)) + b"}\n\n" + DONE
