# SPDX-License-Identifier: Apache-2.0
"""Options for the contents of an answer: log-probabilities, token ids, usage."""

from __future__ import annotations

from rtp_llm.server.turn.served_model import ModelFacts
from rtp_llm.server.types.errors import bad_request
from rtp_llm.server.types.jobs import AnswerOptions
from rtp_llm.server.types.openai_bodies import (
    ChatRequest,
    CompletionRequest,
    SamplingFields,
    StreamOptions,
)


def chat_logprobs(request: ChatRequest, model: ModelFacts) -> int | None:
    """Number of alternatives that a chat requests, -1: all tokens; None without logprobs."""
    top = request.top_logprobs
    if top is not None and not request.logprobs and top != 0:
        raise bad_request(
            "top_logprobs: needs logprobs to be true.", "top_logprobs", "invalid_value"
        )
    count = check_logprobs("top_logprobs", top or 0, model.max_logprobs, model)
    return count if request.logprobs or request.logprob_token_ids else None


def completion_logprobs(request: CompletionRequest, model: ModelFacts) -> int | None:
    """Number of alternatives that a completion requests, -1: all tokens of the vocabulary."""
    if request.logprobs is None:
        return 0 if request.logprob_token_ids else None
    return check_logprobs("logprobs", request.logprobs, model.max_logprobs, model)


def check_logprobs(name: str, wanted: int, most: int, model: ModelFacts) -> int:
    """Check the requested number of alternatives against the setting `most`; ApiError 400."""
    size = model.limits.vocab_size
    most = size if most == -1 else min(most, size)
    count = size if wanted == -1 else wanted
    if not 0 <= count <= most:
        all_of = f" (the whole vocabulary, {size} tokens)" if wanted == -1 else ""
        flag = "--max-prompt-logprobs" if name == "prompt_logprobs" else "--max-logprobs"
        raise bad_request(
            f"{name}: {wanted}{all_of} must be between 0 and {most} (see {flag}).",
            name,
            "invalid_value",
        )
    return count


def prompt_logprobs(request: SamplingFields, model: ModelFacts) -> int | None:
    """Number of alternatives requested for each prompt token; -1: all of the vocabulary.

    Raises ApiError 400.
    """
    wanted = request.prompt_logprobs
    if wanted is None:
        return None
    count = check_logprobs("prompt_logprobs", wanted, model.max_prompt_logprobs, model)
    if request.stream:
        raise bad_request(
            "prompt_logprobs: not available when stream=true.", "prompt_logprobs", "invalid_value"
        )
    return count


def answer_options(
    request: SamplingFields, model: ModelFacts, logprobs: int | None, prompt_logprobs: int | None
) -> AnswerOptions:
    """The answer's options; log-probabilities follow `prompt_logprobs` and the endpoint's own
    fields. Raises ApiError 400 for stream options without a stream."""
    options = request.stream_options
    if not request.stream and options is not None and options != StreamOptions():
        raise bad_request(
            "stream_options: only with stream=true.", "stream_options", "invalid_value"
        )
    as_ids = request.return_tokens_as_token_ids
    include_usage = bool(options and options.include_usage)
    return AnswerOptions(
        include_usage=include_usage,
        continuous_usage=include_usage and bool(options and options.continuous_usage_stats),
        token_ids=bool(request.return_token_ids),
        tokens_as_ids=model.return_tokens_as_token_ids if as_ids is None else as_ids,
        top_logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        named_logprobs=bool(request.logprob_token_ids),
        vllm_fields=model.vllm_fields,
    )
