# SPDX-License-Identifier: Apache-2.0
"""Requests to /v1/responses. Absent and null mean the same: the default."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class _Named(msgspec.Struct, kw_only=True, tag_field="type"):
    """A part of the input. Fields that are not listed are accepted and ignored."""


class InputMessage(_Named, tag="message", kw_only=True):
    """What somebody says; contents as texts or as parts of type input_text or output_text."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[dict[str, Any]]


class InputCall(_Named, tag="function_call", kw_only=True):
    """A call of an earlier answer."""

    call_id: str
    name: str
    arguments: str
    namespace: str | None = None


class InputCallOutput(_Named, tag="function_call_output", kw_only=True):
    """What the function returned."""

    call_id: str
    output: str | list[dict[str, Any]]


class InputCustomCall(_Named, tag="custom_tool_call", kw_only=True):
    """A call whose input is plain text."""

    call_id: str
    name: str
    input: str


class InputCustomCallOutput(_Named, tag="custom_tool_call_output", kw_only=True):
    """What that tool returned."""

    call_id: str
    output: str | list[dict[str, Any]]


class TextPart(msgspec.Struct):
    """A part that is a text, whatever its type."""

    text: str


class InputReasoning(_Named, tag="reasoning", kw_only=True):
    """The assistant's reasoning: the first of these fields that has text."""

    content: list[TextPart] | None = None
    encrypted_content: str | None = None
    summary: list[TextPart] | None = None


class ItemReference(_Named, tag="item_reference", kw_only=True):
    """An item of a stored response."""

    id: str


InputItem = (
    InputMessage
    | InputCall
    | InputCallOutput
    | InputCustomCall
    | InputCustomCallOutput
    | InputReasoning
    | ItemReference
)


class ReasoningOptions(msgspec.Struct, kw_only=True):
    """`summary` is taken; the reasoning itself is given instead of a summary."""

    effort: str | None = None
    summary: str | None = None


class TextFormat(msgspec.Struct, kw_only=True):
    """`schema`, `strict` and `name` are of json_schema."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, kw_only=True):
    """`verbosity` is taken, named among the ignored fields, and not used."""

    format: TextFormat | None = None
    verbosity: str | None = None


class CountInputRequest(msgspec.Struct, kw_only=True):
    """POST /v1/responses/input_tokens."""

    model: str | None = None
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    conversation: Any = None
    chat_template_kwargs: dict[str, Any] | None = None


class ResponsesRequest(CountInputRequest, kw_only=True):
    """POST /v1/responses; below the line: extensions, as of chats."""

    input: str | list[dict[str, Any]]
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    include: list[str] | None = None
    max_tool_calls: int | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    prompt: Any = None
    context_management: Any = None
    moderation: Any = None
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    user: str | None = None
    # ---
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    priority: int | None = None
    cache_salt: str | None = None
