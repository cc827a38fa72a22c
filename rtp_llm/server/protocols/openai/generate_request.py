# SPDX-License-Identifier: Apache-2.0
"""POST /v1/chat/completions/render and /v1/completions/render, as vLLM has them.

They return the equivalent request to a token-in, token-out server: vLLM's GenerateRequest.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import msgspec

from rtp_llm.config.refusals import OTHER_ENDPOINTS
from rtp_llm.server.protocols.openai.chat_request import chat_job
from rtp_llm.server.turn.body_kind import BodyKind
from rtp_llm.server.turn.completion import completion_of
from rtp_llm.server.turn.constraint import constraint_of
from rtp_llm.server.turn.parse import parse_request, refused
from rtp_llm.server.turn.prepared import PreparedBody, PreparedJobs
from rtp_llm.server.turn.served_model import ServedModel
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


@dataclass(frozen=True)
class RenderOptions:
    """The requests of a rendered body, one for each job, without what the jobs have.

    `listed`: the answer is a list, even of one request.
    """

    requests: tuple[GenerateRequest, ...]
    listed: bool


def render_chat(body: bytes, model: ServedModel) -> PreparedJobs[RenderOptions]:
    """Prepare the body of a chat that is only rendered; raises ApiError."""
    request, ignored = parse_request(body, ChatRequest, model)
    job, response_options = chat_job(request, constraint_of(request), model)
    rendered = (_generate_request("chatcmpl", request, job, response_options.options),)
    return PreparedJobs([job], False, RenderOptions(rendered, listed=False), ignored)


RENDER_CHAT = BodyKind("render_chat", render_chat, response_options=(RenderOptions,))


def render_completion(body: bytes, model: ServedModel) -> PreparedJobs[RenderOptions]:
    """Prepare the body of a completion that is only rendered; raises ApiError."""
    request, ignored = parse_request(body, CompletionRequest, model)
    jobs, response_options = completion_of(request, model)
    rendered = tuple(
        _generate_request("cmpl", request, job, response_options.options) for job in jobs
    )
    return PreparedJobs(jobs, False, RenderOptions(rendered, listed=True), ignored)


RENDER_COMPLETION = BodyKind(
    "render_completion", render_completion, response_options=(RenderOptions,), renders=False
)


def rendered_body(prepared: PreparedJobs[RenderOptions]) -> PreparedBody:
    """The answer: the requests, with the token ids and the compiled grammars of their jobs."""
    requests = [
        _filled(request, job)
        for request, job in zip(prepared.response_options.requests, prepared.jobs, strict=True)
    ]
    content = requests if prepared.response_options.listed else requests[0]
    return PreparedBody(msgspec.json.encode(content), prepared.ignored)


def _filled(request: GenerateRequest, job: Job) -> GenerateRequest:
    outputs = None if job.grammar is None else {"grammar": job.grammar.text}
    return msgspec.structs.replace(
        request,
        token_ids=job.prompt_ids,
        sampling_params=request.sampling_params | {"structured_outputs": outputs},
    )


def _generate_request(
    kind: str,
    request: ChatRequest | CompletionRequest,
    job: Job,
    options: AnswerOptions,
) -> GenerateRequest:
    if job.beam_search is not None:
        raise refused("use_beam_search", "use_beam_search", OTHER_ENDPOINTS)
    stream_options = {
        "include_usage": options.include_usage,
        "continuous_usage_stats": options.continuous_usage,
    }
    return GenerateRequest(
        request_id=f"{kind}-{uuid.uuid4().hex}",
        token_ids=[],
        sampling_params=_sampling_params(request, job),
        model=request.model,
        stream=bool(request.stream),
        stream_options=stream_options if request.stream_options and request.stream else None,
        cache_salt=request.cache_salt,
        priority=job.params.priority,
        features=None,
        kv_transfer_params=None,
    )


def _sampling_params(request: ChatRequest | CompletionRequest, job: Job) -> dict[str, Any]:
    words = request.bad_words
    return {
        **{name: getattr(job.params, name) for name in _SAME},
        "logit_bias": job.params.logit_bias or None,
        "logprob_token_ids": job.params.logprob_token_ids or None,
        "bad_words": [words] if isinstance(words, str) and words else words or None,
        "skip_special_tokens": job.skip_special_tokens,
        "include_stop_str_in_output": job.include_stop,
    }
