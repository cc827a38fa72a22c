# SPDX-License-Identifier: Apache-2.0
"""Requests to /v1/messages. Fields that are not listed are accepted and ignored."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Content = str | list[dict[str, Any]]

# A system text with this prefix changes with each request of Claude Code, and is only meant for
# Anthropic's accounting.
BILLING = "x-anthropic-billing-header"


class _Block(msgspec.Struct, kw_only=True, tag_field="type"):
    """A part of a message."""


class TextBlock(_Block, tag="text", kw_only=True):
    """A text."""

    text: str


class ToolUseBlock(_Block, tag="tool_use", kw_only=True):
    """A call of an earlier answer."""

    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(_Block, tag="tool_result", kw_only=True):
    """What a tool answered."""

    tool_use_id: str
    content: Content | None = None
    is_error: bool | None = None


class DocumentBlock(_Block, tag="document", kw_only=True):
    """A document. `source`: a text, blocks, or what cannot be read, such as a PDF."""

    source: dict[str, Any]
    title: str | None = None
    context: str | None = None


class TextSource(_Block, tag="text", kw_only=True):
    """A document's text."""

    data: str


class ContentSource(_Block, tag="content", kw_only=True):
    """A document's text, or its blocks."""

    content: Content


class SearchResultBlock(_Block, tag="search_result", kw_only=True):
    """A page that was found. `source`: its address."""

    source: str
    title: str
    content: list[dict[str, Any]]


class ThinkingBlock(_Block, tag="thinking", kw_only=True):
    """What the assistant thought; without a text it may be in the signature."""

    thinking: str
    signature: str = ""


class RedactedThinkingBlock(_Block, tag="redacted_thinking", kw_only=True):
    """Thinking that this server cannot read."""

    data: str


class ToolReferenceBlock(_Block, tag="tool_reference", kw_only=True):
    """In a tool's result: from here on this tool may be called (see `defer_loading`)."""

    tool_name: str


class InputMessage(msgspec.Struct, kw_only=True):
    """One turn. Claude Code puts system messages among them."""

    role: Literal["user", "assistant", "system"]
    content: Content


class Thinking(msgspec.Struct, kw_only=True):
    """`budget_tokens`: of enabled; `display`: "omitted" leaves the text out of the answer."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(msgspec.Struct, kw_only=True):
    """The form that the answer must have."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, kw_only=True):
    """How much is thought, and the form of the answer."""

    effort: str | None = None
    format: OutputFormat | None = None


class Tool(msgspec.Struct, kw_only=True):
    """A tool that the client runs. `defer_loading`: not before a tool_reference names it."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: str | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class ToolChoice(msgspec.Struct, kw_only=True):
    """`name`: of type tool."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class CountRequest(msgspec.Struct, kw_only=True):
    """POST /v1/messages/count_tokens."""

    model: str | None = None
    messages: list[InputMessage]
    system: Content | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesRequest(CountRequest, kw_only=True):
    """POST /v1/messages. `max_tokens`: at most what the context has room for is generated."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
