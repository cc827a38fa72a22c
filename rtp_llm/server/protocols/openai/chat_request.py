# SPDX-License-Identifier: Apache-2.0
"""POST /v1/chat/completions: turns its body into a chat turn."""

from __future__ import annotations

from rtp_llm.server.protocols.openai.chat_messages import conversation
from rtp_llm.server.protocols.openai.functions import choice, declared, with_tool_calls
from rtp_llm.server.turn.answer_options import answer_options, chat_logprobs, prompt_logprobs
from rtp_llm.server.turn.beam_options import with_beams
from rtp_llm.server.turn.body_kind import BodyKind
from rtp_llm.server.turn.chat_turn import ChatPrompt, ChatTurn, ReasoningOptions
from rtp_llm.server.turn.constraint import constraint_of
from rtp_llm.server.turn.grammar_source import GrammarSource
from rtp_llm.server.turn.parse import Body, parse_request
from rtp_llm.server.turn.prepare_turn import prepare_turn
from rtp_llm.server.turn.prepared import PreparedChat
from rtp_llm.server.turn.sampling import chat_lengths
from rtp_llm.server.turn.served_model import ServedModel
from rtp_llm.server.types.errors import bad_request
from rtp_llm.server.types.jobs import ChatResponseOptions, Job
from rtp_llm.server.types.openai_bodies import ChatRequest, TokenizeRequest

MAX_BUDGET = 2**31 - 1


def prepare_chat(body: Body, model: ServedModel) -> PreparedChat:
    """Turn the body into a job and its response options; raises ApiError."""
    request, ignored = parse_request(body, ChatRequest, model)
    job, response_options = chat_job(request, constraint_of(request), model)
    return PreparedChat([job], bool(request.stream), response_options, ignored)


CHAT = BodyKind("chat", prepare_chat, response_options=(ChatResponseOptions,))


def chat_job(
    request: ChatRequest, grammar: GrammarSource | None, model: ServedModel
) -> tuple[Job, ChatResponseOptions]:
    """The job of a conversation and its response options; raises ApiError."""
    request, beam_search = with_beams(request, model)
    prompt_top = prompt_logprobs(request, model)
    options = answer_options(request, model, chat_logprobs(request, model), prompt_top)
    turn = ChatTurn(
        prompt=chat_prompt(request),
        tool_choice=choice(request),
        grammar=grammar,
        sampling=request,
        lengths=chat_lengths(request, model.defaults, model.limits),
        options=options,
        beam_search=beam_search,
    )
    job = prepare_turn(turn, model)
    last = turn.prompt.messages[-1]
    echoes = (last.content or "",) if request.echo and last.role == "assistant" else ()
    shown = request.include_reasoning is not False
    reasoning_fields = model.reasoning_fields if shown else ()
    response_options = ChatResponseOptions(
        model.name, job.num_choices, options, echoes, reasoning_fields, bool(request.functions)
    )
    return job, response_options


def chat_prompt(request: ChatRequest | TokenizeRequest) -> ChatPrompt:
    """The part of a body that is rendered into the prompt; raises ApiError."""
    return ChatPrompt(
        messages=conversation(with_tool_calls(request.messages or ())),
        tools=declared(request),
        documents=request.documents or (),
        reasoning=_reasoning(request),
        variables=request.chat_template_kwargs or {},
        chat_template=request.chat_template or None,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=bool(request.continue_final_message),
    )


def _reasoning(request: ChatRequest | TokenizeRequest) -> ReasoningOptions:
    if not isinstance(request, ChatRequest):
        return ReasoningOptions()
    return ReasoningOptions(
        enabled=request.enable_thinking,
        effort=request.reasoning_effort or None,
        budget=_budget(request),
    )


def _budget(request: ChatRequest) -> int | None:
    """By either name; -1 is no limit. Raises ApiError 400."""
    given: dict[str, int] = {}
    for name in ("thinking_token_budget", "thinking_budget"):
        tokens: int | None = getattr(request, name)
        if tokens is None:
            continue
        if not -1 <= tokens <= MAX_BUDGET:
            text = f"{name}={tokens} must be -1 or between 0 and {MAX_BUDGET}."
            raise bad_request(text, name, "invalid_value")
        given[name] = tokens
    if len({*given.values()}) > 1:
        text = "thinking_budget and thinking_token_budget are two names of one limit; send one."
        raise bad_request(text, "thinking_budget", "invalid_value")
    budget = next(iter(given.values()), -1)
    return None if budget == -1 else budget
