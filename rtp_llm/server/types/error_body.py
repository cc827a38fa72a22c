# SPDX-License-Identifier: Apache-2.0
"""The body of an error in the format of the endpoint's protocol."""

from __future__ import annotations

import msgspec

from rtp_llm.server.types.anthropic_error import PATH, message_error
from rtp_llm.server.types.errors import ApiError
from rtp_llm.server.types.ollama_error import is_of_ollama, ollama_error


def error_event(error: ApiError, path: str) -> bytes:
    """The error that ends a stream of the endpoint `path`: a server-sent event, or a line."""
    if is_of_ollama(path):
        return ollama_error(error) + b"\n"
    name = b"event: error\n" if is_of_messages(path) else b""
    return name + b"data: " + error_body(error, path) + b"\n\n"


def error_body(error: ApiError, path: str, request_id: str | None = None) -> bytes:
    """The error as JSON, in the shape of the endpoint's protocol: Anthropic's (with the request's
    id), Ollama's, or else OpenAI's."""
    if is_of_ollama(path):
        return ollama_error(error)
    if is_of_messages(path):
        return msgspec.json.encode(message_error(error, request_id))
    return error.body()


def is_of_messages(path: str) -> bool:
    """Whether the path is an endpoint of Anthropic's API."""
    return path == PATH or path.startswith(PATH + "/")
