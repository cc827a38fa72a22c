# SPDX-License-Identifier: Apache-2.0
"""Types of /v1/responses: the response, its items and the events of a stream."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

ItemStatus = Literal["in_progress", "completed", "incomplete"]
Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class _Typed(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """Every part has a type."""


class _Plain(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields that are all there."""


# -- items --------------------------------------------------------------------------------------


class ReasoningText(_Typed, tag="reasoning_text", kw_only=True):
    """The only part of a reasoning item."""

    text: str


class TopLogprob(_Plain, kw_only=True):
    """A token that could have been next. `bytes`: its text's, in items and parts only."""

    token: str
    logprob: float
    bytes: list[int] | msgspec.UnsetType = msgspec.UNSET


class Logprob(TopLogprob, kw_only=True):
    """A token of a text."""

    top_logprobs: list[TopLogprob]


class OutputText(_Typed, tag="output_text", kw_only=True):
    """The only part of a message."""

    text: str
    annotations: list[Any] = []
    logprobs: list[Logprob] = []


class ReasoningItem(_Typed, tag="reasoning", kw_only=True):
    """What the model thought. `encrypted_content`: see opaque_reasoning.py; only if asked for."""

    id: str
    summary: list[Any] = []
    content: list[ReasoningText]
    encrypted_content: str | msgspec.UnsetType = msgspec.UNSET
    status: ItemStatus


class MessageItem(_Typed, tag="message", kw_only=True):
    """What the model said."""

    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class FunctionCallItem(_Typed, tag="function_call", kw_only=True):
    """A call. `namespace`: of a tool that was declared in one; `name` is its name there."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus
    namespace: str | msgspec.UnsetType = msgspec.UNSET


Item: TypeAlias = ReasoningItem | MessageItem | FunctionCallItem
Part: TypeAlias = ReasoningText | OutputText

# -- the response -------------------------------------------------------------------------------


class InputTokensDetails(_Plain, kw_only=True):
    """Details of the prompt's tokens."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(_Plain, kw_only=True):
    """Details of the answer's tokens."""

    reasoning_tokens: int


class ResponseUsage(_Plain, kw_only=True):
    """Token counts of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(_Plain, kw_only=True):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(_Plain, kw_only=True):
    """Why a response ended early."""

    reason: Literal["max_output_tokens"]


class ResponseObject(_Plain, kw_only=True):
    """A response. From `instructions` on: what the request said, or what holds without it."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    output: list[Item] = []
    usage: ResponseUsage | None = None
    instructions: str | list[Any] | None = None
    previous_response_id: str | None = None
    store: bool = False
    background: bool = False
    tools: list[Any] = []
    tool_choice: Any = "auto"
    parallel_tool_calls: bool = True
    text: Any = msgspec.field(default_factory=lambda: {"format": {"type": "text"}})
    reasoning: Any = msgspec.field(default_factory=lambda: {"effort": None, "summary": None})
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int = 0
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    truncation: Literal["disabled"] = "disabled"
    metadata: Any = {}
    service_tier: Literal["default"] = "default"
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None


# -- events -------------------------------------------------------------------------------------


class _Event(_Typed, kw_only=True):
    """`sequence_number` counts the events of a stream from 0."""

    sequence_number: int


class _WithResponse(_Event, kw_only=True):
    response: ResponseObject


class Created(_WithResponse, tag="response.created", kw_only=True):
    """The first event."""


class Queued(_WithResponse, tag="response.queued", kw_only=True):
    """The second, of a response in the background."""


class InProgress(_WithResponse, tag="response.in_progress", kw_only=True):
    """The second, or the third after a queued response."""


class Completed(_WithResponse, tag="response.completed", kw_only=True):
    """The last event of a complete answer."""


class Incomplete(_WithResponse, tag="response.incomplete", kw_only=True):
    """The last event of an answer that reached its maximum length."""


class Failed(_WithResponse, tag="response.failed", kw_only=True):
    """The last event of a failed answer."""


class _OfItem(_Event, kw_only=True):
    output_index: int


class ItemAdded(_OfItem, tag="response.output_item.added", kw_only=True):
    """An item begins; it is still empty."""

    item: Item


class ItemDone(_OfItem, tag="response.output_item.done", kw_only=True):
    """An item has ended; this is all of it."""

    item: Item


class _OfPart(_OfItem, kw_only=True):
    item_id: str
    content_index: int = 0


class PartAdded(_OfPart, tag="response.content_part.added", kw_only=True):
    """The part of an item begins."""

    part: Part


class PartDone(_OfPart, tag="response.content_part.done", kw_only=True):
    """The part of an item has ended."""

    part: Part


class TextDelta(_OfPart, tag="response.output_text.delta", kw_only=True):
    """More text."""

    delta: str
    logprobs: list[Logprob] = []


class TextDone(_OfPart, tag="response.output_text.done", kw_only=True):
    """All of the text."""

    text: str
    logprobs: list[Logprob] = []


class ReasoningDelta(_OfPart, tag="response.reasoning_text.delta", kw_only=True):
    """More reasoning."""

    delta: str


class ReasoningDone(_OfPart, tag="response.reasoning_text.done", kw_only=True):
    """All of the reasoning."""

    text: str


class _OfCall(_OfItem, kw_only=True):
    item_id: str


class ArgumentsDelta(_OfCall, tag="response.function_call_arguments.delta", kw_only=True):
    """More of a call's arguments."""

    delta: str


class ArgumentsDone(_OfCall, tag="response.function_call_arguments.done", kw_only=True):
    """All of a call's arguments."""

    name: str
    arguments: str


Event: TypeAlias = (
    Created
    | Queued
    | InProgress
    | Completed
    | Incomplete
    | Failed
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
)


class DeletedAnswer(_Plain, kw_only=True):
    """DELETE /v1/responses/{id}."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputTokens(_Plain, kw_only=True):
    """POST /v1/responses/input_tokens."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class ItemList(_Plain, kw_only=True):
    """GET /v1/responses/{id}/input_items."""

    object: Literal["list"] = "list"
    data: list[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool
