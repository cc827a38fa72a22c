# SPDX-License-Identifier: Apache-2.0
"""POST /v1/messages and /v1/messages/count_tokens: turn a body into a chat turn."""

from __future__ import annotations

import msgspec

from rtp_llm.server.protocols.anthropic.blocks import Blocks
from rtp_llm.server.protocols.anthropic.events import CountAnswer
from rtp_llm.server.protocols.anthropic.protocol import CountRequest, MessagesRequest
from rtp_llm.server.protocols.anthropic.response_options import MessageResponseOptions
from rtp_llm.server.protocols.anthropic.tools import tool_choice, usable_tools
from rtp_llm.server.turn.body_kind import BodyKind
from rtp_llm.server.turn.chat_turn import ChatPrompt, ChatTurn, ReasoningOptions
from rtp_llm.server.turn.constraint import json_schema
from rtp_llm.server.turn.count_tokens import count_prompt
from rtp_llm.server.turn.grammar_source import GrammarSource
from rtp_llm.server.turn.parse import parse_request, plain_names
from rtp_llm.server.turn.prepare_turn import prepare_turn
from rtp_llm.server.turn.prepared import PreparedBody, PreparedJobs
from rtp_llm.server.turn.sampling import MAX_STOP_LENGTH, MAX_STOPS, Lengths
from rtp_llm.server.turn.served_model import ServedModel
from rtp_llm.server.types.bounds import MAX_TOOLS, check_count
from rtp_llm.server.types.errors import bad_request
from rtp_llm.server.types.openai_bodies import SamplingFields
from rtp_llm.text.conversation import ToolChoice


def prepare_message(body: bytes, model: ServedModel) -> PreparedJobs[MessageResponseOptions]:
    """Turn the body into a job and its response options; raises ApiError."""
    request, ignored = parse_request(body, MessagesRequest, model, strict=False)
    prompt, choice, skipped = _read_prompt(request, model)
    turn = ChatTurn(
        prompt=prompt,
        sampling=_sampling(request),
        lengths=Lengths("messages", "max_tokens", request.max_tokens, None, clamp=True),
        tool_choice=choice,
        grammar=_grammar(request),
    )
    job = prepare_turn(turn, model)
    thinking, room = request.thinking, job.params.max_tokens
    response_options = MessageResponseOptions(
        model=model.name,
        show_thinking=thinking is None or thinking.display != "omitted",
        cut_by_context=isinstance(room, int) and room < request.max_tokens,
    )
    names = (*ignored, *plain_names(skipped))
    return PreparedJobs(
        jobs=[job], stream=bool(request.stream), response_options=response_options, ignored=names
    )


MESSAGE = BodyKind("message", prepare_message, response_options=(MessageResponseOptions,))


def prepare_count(body: bytes, model: ServedModel) -> PreparedBody:
    """Turn the body into the body of the answer; raises ApiError."""
    request, ignored = parse_request(body, CountRequest, model, strict=False)
    prompt, choice, skipped = _read_prompt(request, model)
    answer = CountAnswer(input_tokens=count_prompt(prompt, choice, "messages", model))
    return PreparedBody(msgspec.json.encode(answer), (*ignored, *plain_names(skipped)))


COUNT_TOKENS = BodyKind("count_tokens", prepare_count)


def _read_prompt(
    request: CountRequest, model: ServedModel
) -> tuple[ChatPrompt, ToolChoice, list[str]]:
    """The prompt, the usable tools, and the types of skipped tools and blocks."""
    if not request.messages:
        raise bad_request("messages: must not be empty.", "messages", "empty_array")
    check_count("tools", len(request.tools or ()), MAX_TOOLS, "tools")
    blocks = Blocks(lenient_media=model.lenient_media)
    if request.system is not None:
        blocks.read_system(request.system)
    blocks.read(request.messages)
    messages = blocks.messages()
    if not messages:
        raise bad_request("messages: nobody says anything.", "messages", "invalid_value")
    tools, skipped = usable_tools(request.tools or (), blocks.referenced)
    last = messages[-1]
    prompt = ChatPrompt(
        messages=messages,
        tools=tuple(tools),
        reasoning=_reasoning(request),
        variables=request.chat_template_kwargs or {},
        # Continue an answer that the client has begun.
        continue_final_message=last.role == "assistant" and bool(last.content),
    )
    left_out = sorted({f"messages.{kind}" for kind in blocks.left_out.kinds})
    return prompt, tool_choice(request.tool_choice, tools), [*left_out, *skipped]


def _reasoning(request: CountRequest) -> ReasoningOptions:
    thinking, output = request.thinking, request.output_config
    enabled = budget = None
    if thinking is not None and thinking.type != "adaptive":
        enabled = thinking.type == "enabled"
        budget = thinking.budget_tokens if enabled else None
        if budget is not None and budget < 1:
            name = "thinking.budget_tokens"
            raise bad_request(f"{name}: must be at least 1.", name, "invalid_value")
    effort = output.effort if output is not None else None
    return ReasoningOptions(enabled=enabled, effort=effort, budget=budget, optional=True)


def _sampling(request: MessagesRequest) -> SamplingFields:
    stops = request.stop_sequences or []
    if len(stops) > MAX_STOPS or any(not 0 < len(text) <= MAX_STOP_LENGTH for text in stops):
        raise bad_request(
            f"stop_sequences: at most {MAX_STOPS} texts of 1 to {MAX_STOP_LENGTH} characters are "
            "taken.",
            "stop_sequences",
            "invalid_value",
        )
    return SamplingFields(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        stop=stops,
        stream=request.stream,
    )


def _grammar(request: CountRequest) -> GrammarSource | None:
    output = request.output_config
    nested = output.format if output is not None else None
    for given, place in (
        (nested, "output_config.format.schema"),
        (request.output_format, "output_format.schema"),
    ):
        if given is not None:
            return json_schema(given.schema, True, place)
    return None
