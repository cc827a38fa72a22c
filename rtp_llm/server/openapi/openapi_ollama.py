# SPDX-License-Identifier: Apache-2.0
"""The parts of /openapi.json for Ollama's endpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rtp_llm.server.protocols.ollama import answers, protocol
from rtp_llm.server.protocols.ollama.names import tagged
from rtp_llm.server.types.ollama_error import PATH, OllamaError

Kind = type[msgspec.Struct]
LINES = "application/x-ndjson"
BODIES: Mapping[str, Kind] = {
    f"{PATH}/chat": protocol.OllamaChatRequest,
    f"{PATH}/generate": protocol.OllamaGenerateRequest,
    f"{PATH}/show": protocol.OllamaShowRequest,
}
ANSWERS: Mapping[str, Kind] = {
    f"{PATH}/chat": answers.OllamaChatAnswer,
    f"{PATH}/generate": answers.OllamaGenerateAnswer,
    f"{PATH}/show": answers.OllamaShowAnswer,
    f"{PATH}/tags": answers.OllamaTags,
    f"{PATH}/ps": answers.OllamaProcesses,
    f"{PATH}/version": answers.OllamaVersion,
}
STREAMED = (f"{PATH}/chat", f"{PATH}/generate")
ERROR = OllamaError


def describe_names(components: dict[str, Any], served: Sequence[str]) -> None:
    """The names that the served model goes by; `name` counts without `model` only."""
    names = [*dict.fromkeys([*served, *map(tagged, served)]), "", None]
    for body in BODIES.values():
        components[body.__name__]["properties"]["model"] = {"enum": names}
