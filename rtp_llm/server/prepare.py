"""From a request's body to what the engine is asked: parse, render, tokenise, check.

Pure functions of the body and of the served model, with no event loop and no engine: they may run
anywhere. Each visits the body once and raises ApiError for a request that cannot be served.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from rtp_llm.config.refusals import get_refusal
from rtp_llm.sampling_params import SamplingParams
from rtp_llm.server.errors import ApiError, bad_request, unknown_model
from rtp_llm.server.jobs import CompletionForm, Echo, Job
from rtp_llm.server.parse import parse, template_messages, template_variables
from rtp_llm.server.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Message,
    SamplingFields,
    TokenizeRequest,
)
from rtp_llm.server.sampling import (
    Limits,
    chat_lengths,
    chat_logprobs,
    check_token_ids,
    completion_lengths,
    completion_logprobs,
    sampling_params,
)
from rtp_llm.text.chat_template import ChatTemplateError
from rtp_llm.text.generation_defaults import GenerationDefaults
from rtp_llm.text.sequence import SequenceText
from rtp_llm.text.tokenizer import Tokenizer

# A prompt of more characters per token of the context is looked at from its beginning first.
MANY_CHARACTERS = 16
# Cutting a text changes the tokens at the border only.
BORDER_TOKENS = 64

T = TypeVar("T", ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)


@dataclass(frozen=True)
class ServedModel:
    """What a preparation must know beside the body.

    `limits`: of the engine; `max_sequences`: those that an empty server holds, running and queued.
    """

    name: str
    tokenizer: Tokenizer
    defaults: GenerationDefaults
    limits: Limits
    max_sequences: int


@dataclass(frozen=True)
class PreparedChat:
    """A chat that can be generated. `logprobs`: they are shown."""

    jobs: list[Job]
    stream: bool
    include_usage: bool
    logprobs: bool


@dataclass(frozen=True)
class PreparedCompletion:
    """A completion that can be generated: one job per prompt."""

    jobs: list[Job]
    stream: bool
    include_usage: bool
    form: CompletionForm


def prepare_chat(body: bytes, model: ServedModel) -> PreparedChat:
    """The body of POST /v1/chat/completions; raises ApiError."""
    request = parse_request(body, ChatRequest, model.name)
    _check_size(1, request, model)
    logprobs = chat_logprobs(request)
    lengths = chat_lengths(request, model.defaults)
    ids = _chat_ids(request, model)
    max_tokens = lengths.resolve(len(ids), model.limits)
    params = sampling_params(
        request, model.defaults, model.limits, max_tokens=max_tokens, logprobs=logprobs
    )
    return PreparedChat(
        jobs=[_job(request, model, ids, params)],
        stream=bool(request.stream),
        include_usage=_wants_usage(request),
        logprobs=logprobs is not None,
    )


def prepare_completion(body: bytes, model: ServedModel) -> PreparedCompletion:
    """The body of POST /v1/completions; raises ApiError."""
    request = parse_request(body, CompletionRequest, model.name)
    if request.best_of not in (None, request.n or 1):
        raise _refused_best_of()
    prompts = _prompts(request, model)
    drop = request.max_tokens == 0 and bool(request.echo)
    jobs = _completion_jobs(request, model, prompts, drop)
    choices = jobs[0].params.n
    tokenizer = model.tokenizer
    form = CompletionForm(
        model=model.name,
        choices_per_prompt=choices,
        num_choices=choices * len(jobs),
        logprobs=request.logprobs is not None,
        echoes=[_echo(tokenizer, *prompt) for prompt in prompts] if request.echo else None,
        drop_answer=drop,
    )
    return PreparedCompletion(
        jobs=jobs,
        stream=bool(request.stream),
        include_usage=_wants_usage(request),
        form=form,
    )


def prepare_tokenize(
    body: bytes, model_name: str, tokenizer: Tokenizer, max_model_len: int | None
) -> bytes:
    """The body of POST /tokenize to that of its answer; raises ApiError."""
    request = parse_request(body, TokenizeRequest, model_name)
    if (request.prompt is None) == (request.messages is None):
        raise bad_request("Give one of prompt and messages.", param="prompt")
    if request.messages is not None:
        text = _render(
            tokenizer,
            request.messages,
            request.add_generation_prompt,
            request.chat_template_kwargs,
        )
        ids = tokenizer.encode(text, bool(request.add_special_tokens))
    else:
        ids = tokenizer.encode(request.prompt or "", request.add_special_tokens is not False)
    content: dict[str, Any] = {
        "count": len(ids),
        "max_model_len": max_model_len,
        "tokens": ids,
        "token_strs": tokenizer.tokens(ids) if request.return_token_strs else None,
    }
    return msgspec.json.encode(content)


def prepare_detokenize(
    body: bytes, model_name: str, tokenizer: Tokenizer, vocab_size: int
) -> bytes:
    """The body of POST /detokenize to that of its answer; raises ApiError.

    `vocab_size`: of the engine, whose rows may be more than the tokenizer's; 0 before it is ready.
    """
    request = parse_request(body, DetokenizeRequest, model_name)
    size = max(tokenizer.vocab_size, vocab_size)
    check_token_ids("tokens", request.tokens, Limits(0, size))
    text = tokenizer.decode(request.tokens, bool(request.skip_special_tokens))
    return msgspec.json.encode({"prompt": text})


def parse_request(body: bytes, kind: type[T], served: str) -> T:
    """The request; raises ApiError 404 for another model than the served one."""
    request = parse(body, kind)
    if request.model is not None and request.model != served:
        raise unknown_model(request.model, served)
    return request


# -- parts -------------------------------------------------------------------------------------


def _check_size(num_prompts: int, request: SamplingFields, model: ServedModel) -> None:
    """A request that no empty server could take is a bad one, not one to try again.

    Looked at before anything is tokenised, which takes long for very many prompts.
    """
    n = request.n or 1
    if num_prompts * n > model.max_sequences:
        raise bad_request(
            f"{num_prompts} prompts with n={n} are {num_prompts * n} sequences; this server "
            f"holds at most {model.max_sequences}.",
            param="n" if num_prompts == 1 else "prompt",
            code="invalid_value",
        )


def _render(
    tokenizer: Tokenizer,
    messages: list[Message],
    add_generation_prompt: bool | None,
    variables: dict[str, Any] | None,
) -> str:
    try:
        return tokenizer.apply_chat_template(
            template_messages(messages),
            add_generation_prompt is not False,
            **template_variables(variables),
        )
    except ChatTemplateError as error:
        text = str(error)
        raise bad_request(
            text[:1].upper() + text[1:] + ".", param="messages", code="chat_template"
        ) from error


def _chat_ids(request: ChatRequest, model: ServedModel) -> list[int]:
    text = _render(
        model.tokenizer,
        request.messages,
        request.add_generation_prompt,
        request.chat_template_kwargs,
    )
    _check_length(model.tokenizer, text, model.limits.max_model_len, "messages")
    ids = model.tokenizer.encode(text, bool(request.add_special_tokens))
    if not ids:
        raise bad_request("The messages render to an empty prompt.", param="messages")
    return ids


def _prompts(request: CompletionRequest, model: ServedModel) -> list[tuple[str | None, list[int]]]:
    """(text if one was given, ids) of each prompt."""
    given = request.prompt
    prompts: Sequence[Any] = [given] if isinstance(given, str) else given
    kinds = set(map(type, prompts))
    if kinds == {int}:
        prompts, kinds = [prompts], {list}
    if len(kinds) != 1 or not kinds <= {str, list}:
        raise bad_request(
            "prompt: must be a text, a list of texts, a list of token ids or a list of lists "
            "of token ids, and not empty.",
            param="prompt",
            code="invalid_type",
        )
    _check_size(len(prompts), request, model)
    return [_prompt(item, request, model) for item in prompts]


def _prompt(
    item: str | list[int], request: CompletionRequest, model: ServedModel
) -> tuple[str | None, list[int]]:
    if isinstance(item, list):
        check_token_ids("prompt", item, model.limits)
        text, ids = None, item
    else:
        _check_length(model.tokenizer, item, model.limits.max_model_len, "prompt")
        text, ids = item, model.tokenizer.encode(item, request.add_special_tokens is not False)
    if not ids:
        raise bad_request("prompt: must not be empty.", param="prompt", code="invalid_value")
    return text, ids


def _completion_jobs(
    request: CompletionRequest,
    model: ServedModel,
    prompts: list[tuple[str | None, list[int]]],
    drop: bool,
) -> list[Job]:
    logprobs = completion_logprobs(request)
    lengths = completion_lengths(request, model.defaults)
    jobs: list[Job] = []
    for _, ids in prompts:
        if drop:
            # Only the prompt's log-probabilities are wanted; the engine draws one token.
            lengths.resolve(len(ids) + 1, model.limits)
        params = sampling_params(
            request,
            model.defaults,
            model.limits,
            max_tokens=1 if drop else lengths.resolve(len(ids), model.limits),
            logprobs=None if drop else logprobs,
            prompt_logprobs=logprobs if request.echo else None,
        )
        first = len(jobs) * params.n
        where = {"first_choice": first, "continues_prompt": True, "prompt_only": drop}
        jobs.append(_job(request, model, ids, params, **where))
    return jobs


def _job(
    request: SamplingFields,
    model: ServedModel,
    ids: list[int],
    params: SamplingParams,
    **fields: Any,
) -> Job:
    return Job(
        prompt_ids=ids,
        params=params,
        hidden=model.limits.eos_token_ids,
        skip_special_tokens=request.skip_special_tokens is not False,
        include_stop=bool(request.include_stop_str_in_output),
        cache_salt=request.cache_salt or "",
        **fields,
    )


def _echo(tokenizer: Tokenizer, text: str | None, ids: list[int]) -> Echo:
    sequence = SequenceText(tokenizer.detokenizer(), track_offsets=True)
    decoded = sequence.feed(ids, finished=True)
    return Echo(decoded if text is None else text, ids, sequence.offsets or [])


def _wants_usage(request: SamplingFields) -> bool:
    return bool(request.stream_options and request.stream_options.include_usage)


def _refused_best_of() -> ApiError:
    return bad_request(get_refusal("request", "best_of").message, "best_of", "unsupported")


def _check_length(tokenizer: Tokenizer, text: str, limit: int, param: str) -> None:
    """Refuse a text that is far too long by its beginning, before megabytes are tokenised.

    A token rarely has so many characters; where it has, the whole text is tokenised after all.
    """
    size = MANY_CHARACTERS * limit
    if len(text) <= size:
        return
    count = len(tokenizer.encode(text[:size], False))
    if count > limit + BORDER_TOKENS:
        raise bad_request(
            f"This model's context is {limit} tokens; the first {size} of {len(text)} characters "
            f"in the prompt alone make {count}.",
            param=param,
            code="context_length_exceeded",
        )
