# SPDX-License-Identifier: Apache-2.0
"""Errors in Ollama's shape."""

from __future__ import annotations

import msgspec

from rtp_llm.server.types.errors import ApiError

PATH = "/api"


class OllamaError(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of every error response; also the last line of an interrupted stream."""

    error: str


def is_of_ollama(path: str) -> bool:
    """Whether errors of this path have Ollama's shape."""
    return path.startswith(PATH + "/")


def ollama_error(error: ApiError) -> bytes:
    """Convert an error to Ollama's shape, as JSON; the message names the field at fault."""
    return msgspec.json.encode(OllamaError(error=error.message))
