# SPDX-License-Identifier: Apache-2.0
"""Types of /v1/messages: the message, its blocks, the events of a stream, errors."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from rtp_llm.server.types.anthropic_error import MessageErrorAnswer

StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
]


class _Typed(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """Every part has a type."""


class _Plain(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields that are all there."""


# -- the message --------------------------------------------------------------------------------


class TextBlock(_Typed, tag="text", kw_only=True):
    """What the model said."""

    text: str


class ThinkingBlock(_Typed, tag="thinking", kw_only=True):
    """What the model thought. `signature`: see opaque_reasoning.py."""

    thinking: str
    signature: str


class ToolUseBlock(_Typed, tag="tool_use", kw_only=True):
    """A call."""

    id: str
    name: str
    input: dict[str, Any]


ContentBlock: TypeAlias = TextBlock | ThinkingBlock | ToolUseBlock


class MessageTokensDetails(_Plain, kw_only=True):
    """Details of the answer's tokens."""

    thinking_tokens: int


class MessageUsage(_Plain, kw_only=True):
    """Token counts. `input_tokens`: prompt tokens that were not found in the cache."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: MessageTokensDetails


class MessageObject(_Typed, tag="message", kw_only=True):
    """An answer; its last fields are null while it is streamed."""

    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ContentBlock] = []
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class CountAnswer(_Plain, kw_only=True):
    """POST /v1/messages/count_tokens."""

    input_tokens: int


# -- events -------------------------------------------------------------------------------------


class MessageStart(_Typed, tag="message_start", kw_only=True):
    """The first event; the message has no content yet."""

    message: MessageObject


class _OfBlock(_Typed, kw_only=True):
    index: int


class BlockStart(_OfBlock, tag="content_block_start", kw_only=True):
    """A block begins; it is still empty."""

    content_block: ContentBlock


class TextPiece(_Typed, tag="text_delta", kw_only=True):
    """More text."""

    text: str


class ThinkingPiece(_Typed, tag="thinking_delta", kw_only=True):
    """More thinking."""

    thinking: str


class SignaturePiece(_Typed, tag="signature_delta", kw_only=True):
    """The signature, before the block ends."""

    signature: str


class InputPiece(_Typed, tag="input_json_delta", kw_only=True):
    """More of the JSON text of a call's input."""

    partial_json: str


Piece: TypeAlias = TextPiece | ThinkingPiece | SignaturePiece | InputPiece


class BlockDelta(_OfBlock, tag="content_block_delta", kw_only=True):
    """A block has more."""

    delta: Piece


class BlockStop(_OfBlock, tag="content_block_stop", kw_only=True):
    """A block has ended."""


class Stop(_Plain, kw_only=True):
    """Why the answer ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(_Typed, tag="message_delta", kw_only=True):
    """The answer has ended."""

    delta: Stop
    usage: MessageUsage


class MessageStop(_Typed, tag="message_stop", kw_only=True):
    """The last event."""


class Ping(_Typed, tag="ping", kw_only=True):
    """Sent when there was no other event for a while."""


Event: TypeAlias = (
    MessageStart
    | BlockStart
    | BlockDelta
    | BlockStop
    | MessageDelta
    | MessageStop
    | Ping
    | MessageErrorAnswer
)
