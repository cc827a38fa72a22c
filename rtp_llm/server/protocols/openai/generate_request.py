# SPDX-License-Identifier: Apache-2.0
"""POST /v1/chat/completions/render and /v1/completions/render, as vLLM has them.

They return the equivalent request to a token-in, token-out server: vLLM's GenerateRequest.
"""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from rtp_llm.server.protocols.openai.chat_request import chat_job
from rtp_llm.server.turn.body_kind import BodyKind
from rtp_llm.server.turn.completion import completion_of
from rtp_llm.server.turn.constraint import constraint_of
from rtp_llm.server.turn.grammar_source import prepare_grammar
from rtp_llm.server.turn.parse import parse_request
from rtp_llm.server.turn.prepared import PreparedBody
from rtp_llm.server.turn.served_model import NotInline, ServedModel
from rtp_llm.server.types.jobs import AnswerOptions, Job
from rtp_llm.server.types.openai_answers import GenerateRequest
from rtp_llm.server.types.openai_bodies import ChatRequest, CompletionRequest

# Fields of SamplingParams that have the same name in vLLM.
_SAME = (
    "n",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "max_tokens",
    "min_tokens",
    "logprobs",
    "prompt_logprobs",
    "allowed_token_ids",
)


def render_chat(body: bytes, model: ServedModel) -> PreparedBody:
    """Turn the body of a chat into the body of the answer; raises ApiError."""
    request, ignored = parse_request(body, ChatRequest, model)
    job, form = chat_job(request, constraint_of(request), model)
    grammar = _grammar(job, model)
    rendered = _generate_request("chatcmpl", request, job, form.options, grammar)
    return PreparedBody(msgspec.json.encode(rendered), ignored)


RENDER_CHAT = BodyKind("render_chat", render_chat, compiles=True)


def render_completion(body: bytes, model: ServedModel) -> PreparedBody:
    """Turn the body of a completion into the body of the answer, a list; raises ApiError."""
    request, ignored = parse_request(body, CompletionRequest, model)
    jobs, form = completion_of(request, model)
    grammar = _grammar(jobs[0], model)
    rendered = [_generate_request("cmpl", request, job, form.options, grammar) for job in jobs]
    return PreparedBody(msgspec.json.encode(rendered), ignored)


RENDER_COMPLETION = BodyKind("render_completion", render_completion, renders=False, compiles=True)


def _grammar(job: Job, model: ServedModel) -> str | None:
    """The grammar of a body, which is the same for all its jobs."""
    if not job.grammar_source:
        return None
    if model.inline:
        raise NotInline
    return prepare_grammar(job.grammar_source, model).body.decode()


def _generate_request(
    kind: str,
    request: ChatRequest | CompletionRequest,
    job: Job,
    options: AnswerOptions,
    grammar: str | None,
) -> GenerateRequest:
    stream_options = {
        "include_usage": options.include_usage,
        "continuous_usage_stats": options.continuous_usage,
    }
    return GenerateRequest(
        request_id=f"{kind}-{uuid.uuid4().hex}",
        token_ids=job.prompt_ids,
        sampling_params=_sampling_params(request, job, grammar),
        model=request.model,
        stream=bool(request.stream),
        stream_options=stream_options if request.stream_options and request.stream else None,
        cache_salt=request.cache_salt,
        priority=job.params.priority,
        features=None,
        kv_transfer_params=None,
    )


def _sampling_params(
    request: ChatRequest | CompletionRequest, job: Job, grammar: str | None
) -> dict[str, Any]:
    words = request.bad_words
    return {
        **{name: getattr(job.params, name) for name in _SAME},
        "logit_bias": job.params.logit_bias or None,
        "logprob_token_ids": job.params.logprob_token_ids or None,
        "bad_words": [words] if isinstance(words, str) and words else words or None,
        "skip_special_tokens": job.skip_special_tokens,
        "include_stop_str_in_output": job.include_stop,
        "structured_outputs": None if grammar is None else {"grammar": grammar},
    }
