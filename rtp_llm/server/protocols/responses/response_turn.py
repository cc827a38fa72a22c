# SPDX-License-Identifier: Apache-2.0
"""POST /v1/responses: turns its body into a chat turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from rtp_llm.server.protocols.responses.context import ReadContext, split
from rtp_llm.server.protocols.responses.events import InputTokens
from rtp_llm.server.protocols.responses.full_items import full_item
from rtp_llm.server.protocols.responses.items import Items
from rtp_llm.server.protocols.responses.protocol import (
    CountInputRequest,
    ResponsesRequest,
    TextFormat,
)
from rtp_llm.server.protocols.responses.response_options import ResponseOptions
from rtp_llm.server.protocols.responses.tools import Tools
from rtp_llm.server.turn.answer_options import check_logprobs
from rtp_llm.server.turn.body_kind import BodyKind
from rtp_llm.server.turn.chat_turn import ChatPrompt, ChatTurn, ReasoningOptions
from rtp_llm.server.turn.constraint import json_object, json_schema
from rtp_llm.server.turn.count_tokens import count_prompt
from rtp_llm.server.turn.grammar_source import GrammarSource
from rtp_llm.server.turn.parse import is_harmless, parse_request, plain_names, refused
from rtp_llm.server.turn.prepare_turn import prepare_turn
from rtp_llm.server.turn.prepared import PreparedBody, PreparedJobs
from rtp_llm.server.turn.sampling import Lengths
from rtp_llm.server.turn.served_model import ServedModel
from rtp_llm.server.types.bounds import MAX_TOOLS, check_count
from rtp_llm.server.types.errors import bad_request
from rtp_llm.server.types.jobs import AnswerOptions, Job
from rtp_llm.server.types.openai_bodies import SamplingFields
from rtp_llm.text.conversation import ToolChoice

_ENCRYPTED = "reasoning.encrypted_content"
_LOGPROBS = "message.output_text.logprobs"
_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "stream",
    "priority",
    "cache_salt",
)
_ECHOED = (
    "instructions",
    "previous_response_id",
    "parallel_tool_calls",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "prompt_cache_key",
    "safety_identifier",
    "tool_choice",
    "tools",
    "user",
)


def prepare_response(joined: bytes, model: ServedModel) -> PreparedJobs[ResponseOptions]:
    """Turn context and body into a job and its response options; raises ApiError."""
    context, body = split(joined)
    request, ignored = parse_request(body, ResponsesRequest, model)
    stored = context.stores and request.store is not False
    _check(request, stored)
    prompt, options = _read(request, context, model), _options(request, model)
    job = prepare_turn(_turn(request, prompt, options, model), model)
    response_options = ResponseOptions(
        model=model.name,
        echo=_echo(request, job, stored),
        namespaces=prompt.tools.namespaces,
        seal_reasoning=_ENCRYPTED in (request.include or ()),
        options=options,
        inputs=[full_item(item, context.items) for item in _given(request)] if stored else [],
    )
    return PreparedJobs(
        jobs=[job],
        stream=bool(request.stream),
        response_options=response_options,
        ignored=(*ignored, *prompt.unused()),
    )


RESPONSE = BodyKind("response", prepare_response, response_options=(ResponseOptions,))


def prepare_count_input(joined: bytes, model: ServedModel) -> PreparedBody:
    """Turn context and body into the body of the answer; raises ApiError."""
    context, body = split(joined)
    request, ignored = parse_request(body, CountInputRequest, model)
    _refuse(request, "conversation")
    prompt = _read(request, context, model)
    answer = InputTokens(input_tokens=count_prompt(prompt.chat, prompt.choice, "input", model))
    return PreparedBody(msgspec.json.encode(answer), (*ignored, *prompt.unused()))


COUNT_INPUT = BodyKind("count_input", prepare_count_input)


@dataclass(frozen=True)
class _Prompt:
    """The prompt of a request, and what was ignored in it."""

    chat: ChatPrompt
    tools: Tools
    choice: ToolChoice
    skipped: tuple[str, ...]

    def unused(self) -> tuple[str, ...]:
        """Names of ignored parts, sanitised for use in a header."""
        return plain_names(sorted({*self.tools.skipped, *self.skipped}))


def _read(request: CountInputRequest, context: ReadContext, model: ServedModel) -> _Prompt:
    """Read the prompt; raises ApiError 400, or 404 for an item that is not stored."""
    check_count("tools", len(request.tools or ()), MAX_TOOLS, "tools")
    tools, items = Tools(), Items(context.items, lenient_media=model.lenient_media)
    tools.read(request.tools or ())
    if request.instructions:
        items.instruct(request.instructions)
    items.read(context.history, "previous_response_id")
    items.read(_given(request), "input")
    messages, options = items.messages(), request.reasoning
    if not messages:
        raise bad_request("input: must not be empty.", "input", "empty_array")
    chat = ChatPrompt(
        messages=messages,
        tools=tuple(tools.functions),
        reasoning=ReasoningOptions(effort=options.effort if options else None, optional=True),
        variables=request.chat_template_kwargs or {},
    )
    choice = tools.choice(request.tool_choice, request.parallel_tool_calls is not False)
    return _Prompt(chat, tools, choice, (*items.skipped, *items.left_out, *_unused(request)))


def _check(request: ResponsesRequest, stored: bool) -> None:
    """Raise ApiError 400 for unsupported fields."""
    _refuse(request, "prompt", "conversation", "moderation", "context_management")
    if request.background and not stored:
        raise bad_request(
            "background: the answer would be lost, as it is not stored (see "
            "--max-stored-responses, and leave out store=false).",
            "background",
            "unsupported",
        )


def _refuse(request: CountInputRequest, *names: str) -> None:
    """Raise ApiError 400 for any of these fields with a value other than a no-op."""
    for name in names:
        if not is_harmless(name, getattr(request, name)):
            raise refused(name, name, area="responses")


def _unused(request: CountInputRequest) -> list[str]:
    """Ignored options: agents send them, but local models do not support them."""
    verbosity = request.text.verbosity if request.text is not None else None
    return [] if verbosity in (None, "medium") else ["text.verbosity"]


def _given(request: CountInputRequest) -> list[dict[str, Any]]:
    if request.input is None:
        return []
    if isinstance(request.input, list):
        return request.input
    return [{"type": "message", "role": "user", "content": request.input}]


def _options(request: ResponsesRequest, model: ServedModel) -> AnswerOptions:
    """The options for log-probabilities, which either of two fields can request."""
    top = check_logprobs("top_logprobs", request.top_logprobs or 0, model.max_logprobs, model)
    shown = top > 0 or _LOGPROBS in (request.include or ())
    return AnswerOptions(
        tokens_as_ids=model.return_tokens_as_token_ids, top_logprobs=top if shown else None
    )


def _turn(
    request: ResponsesRequest, prompt: _Prompt, options: AnswerOptions, model: ServedModel
) -> ChatTurn:
    text, most = request.text, request.max_output_tokens
    return ChatTurn(
        prompt=prompt.chat,
        sampling=SamplingFields(**{name: getattr(request, name) for name in _SAMPLING}),
        lengths=Lengths("input", "max_output_tokens", most, model.defaults.max_tokens),
        tool_choice=prompt.choice,
        grammar=_grammar(text.format) if text and text.format else None,
        options=options,
    )


def _grammar(given: TextFormat) -> GrammarSource | None:
    place = "text.format.schema"
    if given.type == "json_object":
        return json_object(place)
    if given.type == "text":
        return None
    if given.schema is None:
        raise bad_request(f"{place} is required.", place, "missing_required_parameter")
    return json_schema(given.schema, bool(given.strict), place)


def _echo(request: ResponsesRequest, job: Job, stored: bool) -> dict[str, Any]:
    """Fields of the response that repeat the request's fields or their defaults."""
    echo = {name: getattr(request, name) for name in _ECHOED}
    echo = {name: value for name, value in echo.items() if value is not None}
    if request.text is not None:
        echo["text"] = {"format": {"type": "text"}} | _shown(request.text)
    if request.reasoning is not None:
        echo["reasoning"] = {"effort": None, "summary": None} | _shown(request.reasoning)
    params = job.params
    echo |= {"temperature": params.temperature, "top_p": params.top_p}
    echo["top_logprobs"] = params.logprobs or 0
    return echo | {"store": stored, "background": bool(request.background)}


def _shown(options: msgspec.Struct) -> dict[str, Any]:
    """The options that are set."""
    plain: dict[str, Any] = msgspec.to_builtins(options)
    return _without_nulls(plain)


def _without_nulls(plain: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _without_nulls(value) if name == "format" else value
        for name, value in plain.items()
        if value is not None
    }
