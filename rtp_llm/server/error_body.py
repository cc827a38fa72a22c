"""The body of an error, as the protocol of the endpoint has it."""

from __future__ import annotations

import msgspec

from rtp_llm.server.anthropic.errors import PATH, message_error
from rtp_llm.server.errors import ApiError


def error_event(error: ApiError, path: str) -> bytes:
    """A server-sent event that ends a stream of the endpoint `path`."""
    name = b"event: error\n" if _is_of_messages(path) else b""
    return name + b"data: " + error_body(error, path) + b"\n\n"


def error_body(error: ApiError, path: str) -> bytes:
    """JSON: in Anthropic's shape for its endpoints, else in OpenAI's."""
    if _is_of_messages(path):
        return msgspec.json.encode(message_error(error))
    return error.body()


def _is_of_messages(path: str) -> bool:
    return path == PATH or path.startswith(PATH + "/")
