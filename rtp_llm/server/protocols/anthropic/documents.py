# SPDX-License-Identifier: Apache-2.0
"""Renders documents and search results as text for the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rtp_llm.server.protocols.anthropic.protocol import (
    ContentSource,
    DocumentBlock,
    SearchResultBlock,
    TextSource,
)
from rtp_llm.server.turn.parse import convert_at

# Returns the text of a block at a path; raises ApiError 400 for an unsupported block.
ReadBlock = Callable[[dict[str, Any], str], str]
_READABLE = ("text", "content")


def is_readable(block: dict[str, Any]) -> bool:
    """Whether a document block contains text, as opposed to a PDF or a file."""
    source = block.get("source")
    return not isinstance(source, dict) or source.get("type") in _READABLE


def document_text(block: DocumentBlock, place: str, read: ReadBlock) -> str:
    """A readable document with its title and context; raises ApiError 400."""
    where = f"{place}.source"
    source: TextSource | ContentSource = convert_at(block.source, TextSource | ContentSource, where)
    if isinstance(source, TextSource):
        text = source.data
    elif isinstance(source.content, str):
        text = source.content
    else:
        parts = enumerate(source.content)
        text = "\n".join(read(part, f"{where}.content[{at}]") for at, part in parts)
    return _tagged("document", {"title": block.title, "context": block.context}, text)


def search_result_text(block: SearchResultBlock, place: str, read: ReadBlock) -> str:
    """A search result with its title and source; raises ApiError 400."""
    parts = enumerate(block.content)
    text = "\n".join(read(part, f"{place}.content[{at}]") for at, part in parts)
    return _tagged("search_result", {"title": block.title, "source": block.source}, text)


def _tagged(name: str, about: dict[str, str | None], text: str) -> str:
    lines = [f"<{tag}>{value}</{tag}>" for tag, value in about.items() if value]
    return "\n".join([f"<{name}>", *lines, text, f"</{name}>"])
