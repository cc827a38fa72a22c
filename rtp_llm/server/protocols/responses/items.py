# SPDX-License-Identifier: Apache-2.0
"""Converts the items of a request to a conversation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

import msgspec

from rtp_llm.server.protocols.responses.protocol import (
    InputCall,
    InputCallOutput,
    InputCustomCall,
    InputCustomCallOutput,
    InputItem,
    InputMessage,
    InputReasoning,
    ItemReference,
)
from rtp_llm.server.turn.left_out import LeftOut
from rtp_llm.server.turn.opaque_reasoning import unseal
from rtp_llm.server.turn.parse import convert_at, refused
from rtp_llm.server.turn.transcript import Transcript
from rtp_llm.server.types.errors import ApiError, bad_request
from rtp_llm.text.conversation import Message, ToolCall

_KNOWN = {str(kind.__struct_config__.tag) for kind in get_args(InputItem)}
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}


class Items:
    """Reads the items of a request. `stored`: items that an item_reference may refer to, by id.

    `skipped`: unknown types, such as calls of tools that run at OpenAI.
    """

    def __init__(self, stored: Mapping[str, dict[str, Any]], *, lenient_media: bool = True) -> None:
        self._left_out = LeftOut(lenient_media)
        self._stored = stored
        self._transcript = Transcript()
        self.skipped: list[str] = []

    def instruct(self, text: str) -> None:
        """Add the `instructions` of the request."""
        self._transcript.system(text)

    def read(self, items: Iterable[dict[str, Any]], name: str) -> None:
        """Read the items in the field `name`; raises ApiError 400 naming the invalid item."""
        for at, item in enumerate(items):
            self._read(item, f"{name}[{at}]")

    def messages(self) -> tuple[Message, ...]:
        """The conversation so far."""
        return self._transcript.messages()

    @property
    def left_out(self) -> list[str]:
        """Kinds of non-text parts that were left out of tool results."""
        return [f"input.{kind}" for kind in self._left_out.kinds]

    def _read(self, given: dict[str, Any], place: str) -> None:
        item = self._known(given, place)
        if isinstance(item, ItemReference):
            stored = self._stored.get(item.id)
            if stored is None:
                raise unknown_item(item.id, f"{place}.id")
            item = self._known(stored, place)
        if isinstance(item, InputMessage):
            self._say(item, place)
        elif isinstance(item, InputReasoning):
            if text := _reasoning(item):
                self._transcript.reasoning(text)
        elif isinstance(item, InputCall):
            name = f"{item.namespace}.{item.name}" if item.namespace else item.name
            self._transcript.call(ToolCall(item.call_id, name, item.arguments))
        elif isinstance(item, InputCustomCall):
            arguments = msgspec.json.encode({"input": item.input}).decode()
            self._transcript.call(ToolCall(item.call_id, item.name, arguments))
        elif isinstance(item, InputCallOutput | InputCustomCallOutput):
            text = content_text(item.output, f"{place}.output", self._left_out)
            self._transcript.result(item.call_id, text)

    def _known(self, given: dict[str, Any], place: str) -> InputItem | None:
        """Decode an item; None if its type is unknown."""
        kind = given.get("type") or ("message" if "role" in given else None)
        if not isinstance(kind, str):
            raise bad_request(
                f"{place}.type is required.", f"{place}.type", "missing_required_parameter"
            )
        if kind not in _KNOWN:
            self.skipped.append(f"input.{kind}")
            return None
        item: InputItem = convert_at(given | {"type": kind}, InputItem, place)
        return item

    def _say(self, item: InputMessage, place: str) -> None:
        text = content_text(item.content, f"{place}.content")
        if item.role == "assistant":
            self._transcript.assistant(text)
        elif item.role == "user":
            self._transcript.user(text)
        elif text:
            self._transcript.system(text)


def content_text(
    content: str | Sequence[dict[str, Any]], place: str, left_out: LeftOut | None = None
) -> str:
    """Text parts joined by line breaks.

    Any other part is replaced by a text of ``left_out``; without that, raises ApiError 400.
    """
    if isinstance(content, str):
        return content
    parts = enumerate(content)
    return "\n".join(_part_text(part, f"{place}[{at}]", left_out) for at, part in parts)


def _part_text(part: dict[str, Any], place: str, left_out: LeftOut | None) -> str:
    kind = part.get("type")
    name = _TEXTS.get(kind) if isinstance(kind, str) else None
    if name is None:
        if left_out is None:
            raise refused("messages.content", place)
        return left_out.text_for(kind, place)
    text = part.get(name)
    if not isinstance(text, str):
        raise bad_request(f"{place}.{name}: expected str.", f"{place}.{name}", "invalid_type")
    return text


def _reasoning(item: InputReasoning) -> str:
    said = "".join(part.text for part in item.content or ())
    sealed = unseal(item.encrypted_content or "")
    return said or sealed or "\n".join(part.text for part in item.summary or ())


def unknown_item(item_id: str, param: str) -> ApiError:
    """A 404 error for a reference to an item that is not stored."""
    return ApiError(
        404,
        f"Item with id {item_id!r} not found: it is not stored here, or not any more (see "
        "--max-stored-responses).",
        param=param,
        code="not_found",
    )
