# SPDX-License-Identifier: Apache-2.0
"""POST /v1/chat/completions/batch: turns its body into one job per conversation."""

from __future__ import annotations

from dataclasses import replace

from rtp_llm.config.refusals import OTHER_ENDPOINTS
from rtp_llm.server.protocols.openai.chat_request import chat_job
from rtp_llm.server.turn.body_kind import BodyKind
from rtp_llm.server.turn.constraint import constraint_of
from rtp_llm.server.turn.parse import is_harmless, parse_request, refused
from rtp_llm.server.turn.prepared import PreparedChat
from rtp_llm.server.turn.prompts import check_size
from rtp_llm.server.turn.served_model import NotInline, ServedModel
from rtp_llm.server.types.errors import bad_request
from rtp_llm.server.types.jobs import ChatResponseOptions
from rtp_llm.server.types.openai_bodies import (
    BatchChatRequest,
    BeamFields,
    ChatFields,
    ChatRequest,
    SamplingFields,
)


def prepare_chat_batch(body: bytes, model: ServedModel) -> PreparedChat:
    """The jobs, and the options of their common response, with one choice each; raises ApiError."""
    request, ignored = parse_request(body, BatchChatRequest, model)
    _check(request)
    check_size(len(request.messages), request, model, "messages")
    if model.inline and len(request.messages) > 1:
        raise NotInline  # rendering a template many times takes long
    grammar = constraint_of(request)
    fields = {name: getattr(request, name) for name in ChatFields.__struct_fields__}
    chats = [ChatRequest(messages=messages, **fields) for messages in request.messages]
    made = [chat_job(chat, grammar, model) for chat in chats]
    jobs = [replace(job, first_choice=number) for number, (job, _) in enumerate(made)]
    echoes = tuple(response_options.echo_of(0) for _, response_options in made)
    response_options = replace(made[0][1], num_choices=len(jobs), echoes=echoes, batch=True)
    return PreparedChat(jobs, False, response_options, ignored)


CHAT_BATCH = BodyKind("chat_batch", prepare_chat_batch, response_options=(ChatResponseOptions,))


def _check(request: BatchChatRequest) -> None:
    """Raise ApiError 400 for fields that vLLM does not accept here either."""
    if not request.messages or not all(request.messages):
        text = "messages: must be a list of conversations, none of them empty."
        raise bad_request(text, "messages", "invalid_value")
    for name in ("stream", "tools", "functions"):
        if getattr(request, name):
            text = f"{name}: not in a batch of conversations; send them to /v1/chat/completions."
            raise bad_request(text, name, "unsupported")
    for name in BeamFields.__struct_fields__[len(SamplingFields.__struct_fields__) :]:
        if name != "best_of" and not is_harmless(name, getattr(request, name)):
            raise refused(name, name, OTHER_ENDPOINTS)
    if request.n not in (None, 1):
        text = f"n={request.n}: each conversation of a batch has one choice; leave it out."
        raise bad_request(text, "n", "unsupported")
