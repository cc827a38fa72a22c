# SPDX-License-Identifier: Apache-2.0
"""Converts messages and their blocks to a conversation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, get_args

import msgspec

from rtp_llm.server.protocols.anthropic.documents import (
    document_text,
    is_readable,
    search_result_text,
)
from rtp_llm.server.protocols.anthropic.protocol import (
    BILLING,
    Content,
    DocumentBlock,
    InputMessage,
    RedactedThinkingBlock,
    SearchResultBlock,
    TextBlock,
    ThinkingBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from rtp_llm.server.turn.left_out import LeftOut
from rtp_llm.server.turn.opaque_reasoning import unseal
from rtp_llm.server.turn.parse import convert_at, refused
from rtp_llm.server.turn.transcript import Transcript
from rtp_llm.server.types.errors import bad_request
from rtp_llm.text.conversation import Message, ToolCall

Block: TypeAlias = (
    TextBlock
    | DocumentBlock
    | SearchResultBlock
    | ToolUseBlock
    | ToolResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
)
_KNOWN = {str(kind.__struct_config__.tag) for kind in get_args(Block)}


class Blocks:
    """Reads a request. `referenced`: tools referenced by tool results, see `defer_loading`.

    `left_out`: kinds of non-text parts that were left out of tool results.
    """

    def __init__(self, *, lenient_media: bool = True) -> None:
        self._transcript = Transcript()
        self.left_out = LeftOut(lenient_media)
        self.referenced: set[str] = set()

    def read_system(self, system: Content) -> None:
        """Read the field `system`; raises ApiError 400."""
        for text in _texts(system, "system"):
            self._instruct(text)

    def read(self, messages: Sequence[InputMessage]) -> None:
        """Read the field `messages`; raises ApiError 400 naming the invalid block."""
        for at, message in enumerate(messages):
            place = f"messages[{at}].content"
            if message.role == "system":
                for text in _texts(message.content, place):
                    self._instruct(text)
            elif message.role == "user":
                self._read_user(message.content, place)
            else:
                self._read_assistant(message.content, place)

    def messages(self) -> tuple[Message, ...]:
        """The conversation so far."""
        return self._transcript.messages()

    def _instruct(self, text: str) -> None:
        if text and not text.startswith(BILLING):
            self._transcript.system(text)

    def _read_user(self, content: Content, place: str) -> None:
        said = []
        for block, where in _blocks(content, place):
            if isinstance(block, TextBlock):
                said.append(block.text)
            elif isinstance(block, DocumentBlock):
                said.append(document_text(block, where, _text))
            elif isinstance(block, SearchResultBlock):
                said.append(search_result_text(block, where, _text))
            elif isinstance(block, ToolResultBlock):
                self._transcript.result(block.tool_use_id, self._result(block, where))
            else:
                raise _misplaced(where, "user")
        if said:
            self._transcript.user("\n".join(said))

    def _read_assistant(self, content: Content, place: str) -> None:
        for block, where in _blocks(content, place):
            if isinstance(block, TextBlock):
                self._transcript.assistant(block.text)
            elif isinstance(block, ThinkingBlock):
                if reasoning_text := block.thinking or unseal(block.signature):
                    self._transcript.reasoning(reasoning_text)
            elif isinstance(block, ToolUseBlock):
                arguments = msgspec.json.encode(block.input).decode()
                self._transcript.call(ToolCall(block.id, block.name, arguments))
            elif isinstance(block, ToolResultBlock | DocumentBlock | SearchResultBlock):
                raise _misplaced(where, "assistant")

    def _result(self, block: ToolResultBlock, place: str) -> str:
        content, texts = block.content or "", []
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        for at, part in enumerate(parts):
            where = f"{place}.content[{at}]"
            if part.get("type") == "tool_reference":
                name: str = convert_at(part, ToolReferenceBlock, where).tool_name
                self.referenced.add(name)
                texts.append(f"The tool {name} can be called now.")
            else:
                texts.append(self._result_text(part, where))
        text = "\n".join(texts)
        return f"Error: {text}" if block.is_error else text

    def _result_text(self, part: dict[str, Any], place: str) -> str:
        """The text of a block in a tool result; non-text blocks are replaced."""
        kind = part.get("type")
        if kind == "text":
            return _text(part, place)
        if kind == "document" and is_readable(part):
            document: DocumentBlock = convert_at(part, DocumentBlock, place)
            return document_text(document, place, self._result_text)
        if kind == "search_result":
            found: SearchResultBlock = convert_at(part, SearchResultBlock, place)
            return search_result_text(found, place, self._result_text)
        return self.left_out.text_for(kind, place)


def _blocks(content: Content, place: str) -> Iterator[tuple[Block, str]]:
    """The blocks, each with its path in the request."""
    if isinstance(content, str):
        yield TextBlock(text=content), place
        return
    for at, block in enumerate(content):
        where, kind = f"{place}[{at}]", block.get("type")
        if not (isinstance(kind, str) and kind in _KNOWN) or (
            kind == "document" and not is_readable(block)
        ):
            raise refused("messages.content", where)
        yield convert_at(block, Block, where), where


def _texts(content: Content, place: str) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [_text(block, f"{place}[{at}]") for at, block in enumerate(content)]


def _text(block: dict[str, Any], place: str) -> str:
    if block.get("type") != "text":
        raise refused("messages.content", place)
    text: TextBlock = convert_at(block, TextBlock, place)
    return text.text


def _misplaced(place: str, role: str) -> Exception:
    return bad_request(
        f"{place}: blocks of this type are not for the role {role}.", place, "invalid_value"
    )
