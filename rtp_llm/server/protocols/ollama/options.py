# SPDX-License-Identifier: Apache-2.0
"""Reports the `options` of a request that have no effect."""

from __future__ import annotations

from typing import Any

import msgspec

from rtp_llm.config.refusals import OTHER_ENDPOINTS, find_refusal
from rtp_llm.server.protocols.ollama.protocol import OllamaOptions
from rtp_llm.server.turn.parse import is_harmless, refused
from rtp_llm.server.turn.served_model import ServedModel


class _Named(msgspec.Struct):
    options: dict[str, Any] | None = None


def unknown_options(body: bytes) -> list[str]:
    """The names of unknown options with non-empty values; raises ApiError 400 for those of a beam
    search."""
    given = msgspec.json.decode(body, type=_Named).options or {}
    known = OllamaOptions.__struct_fields__
    unknown = [
        name for name, value in given.items() if name not in known and not is_harmless(name, value)
    ]
    for name in unknown:
        if find_refusal(OTHER_ENDPOINTS, name) is not None:
            raise refused(name, f"options.{name}", OTHER_ENDPOINTS)
    return [f"options.{name}" for name in unknown]


def ignored_options(options: OllamaOptions, model: ServedModel) -> list[str]:
    """Options that exceed the server's capabilities: a context longer than it has."""
    wanted = options.num_ctx
    return ["options.num_ctx"] if wanted and wanted > model.limits.max_model_len else []
