"""POST /v1/chat/completions: from its body to the turn that it asks for."""

from __future__ import annotations

from rtp_llm.server.openai.protocol import ChatRequest, TokenizeRequest
from rtp_llm.server.prepare.chat_turn import ChatPrompt, ChatTurn, ReasoningWish
from rtp_llm.server.prepare.jobs import ChatForm
from rtp_llm.server.prepare.openai_messages import conversation
from rtp_llm.server.prepare.parse import check_best_of, parse_request
from rtp_llm.server.prepare.prepare_turn import prepare_turn
from rtp_llm.server.prepare.prepared import PreparedChat
from rtp_llm.server.prepare.sampling import (
    answer_options,
    chat_lengths,
    chat_logprobs,
    prompt_logprobs,
)
from rtp_llm.server.prepare.served_model import ServedModel


def prepare_chat(body: bytes, model: ServedModel) -> PreparedChat:
    """From the body to a job and the form of its answer; raises ApiError."""
    request, ignored = parse_request(body, ChatRequest, model)
    check_best_of(request)
    prompt_top = prompt_logprobs(request, model.max_prompt_logprobs, model.limits.vocab_size)
    options = answer_options(request, chat_logprobs(request), prompt_top)
    turn = ChatTurn(
        prompt=chat_prompt(request),
        sampling=request,
        lengths=chat_lengths(request, model.defaults, model.limits),
        options=options,
    )
    job = prepare_turn(turn, model)
    last = turn.prompt.messages[-1]
    echo = (last.content or "") if request.echo and last.role == "assistant" else ""
    return PreparedChat(
        jobs=[job],
        stream=bool(request.stream),
        form=ChatForm(model.name, job.params.n, options, echo),
        ignored=ignored,
    )


def chat_prompt(request: ChatRequest | TokenizeRequest) -> ChatPrompt:
    """What is rendered of a body; raises ApiError."""
    return ChatPrompt(
        messages=conversation(request.messages or ()),
        reasoning=_reasoning(request),
        variables=request.chat_template_kwargs or {},
        chat_template=request.chat_template or None,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=bool(request.continue_final_message),
    )


def _reasoning(request: ChatRequest | TokenizeRequest) -> ReasoningWish:
    effort = request.reasoning_effort if isinstance(request, ChatRequest) else None
    return ReasoningWish(effort=effort or None)
