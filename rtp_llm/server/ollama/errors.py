# SPDX-License-Identifier: Apache-2.0
"""Errors in Ollama's shape."""

from __future__ import annotations

import msgspec

from rtp_llm.server.errors import ApiError
from rtp_llm.server.ollama.answers import OllamaError
from rtp_llm.server.ollama.names import PATH


def is_of_ollama(path: str) -> bool:
    """Whether errors of this path have Ollama's shape."""
    return path.startswith(PATH + "/")


def ollama_error(error: ApiError) -> bytes:
    """The same error as JSON; the name of the field at fault is in its message."""
    return msgspec.json.encode(OllamaError(error=error.message))
