"""From a request's body to what the engine is asked: parse, render, tokenise, check.

Pure functions of the body and of the served model, with no event loop and no engine: they may run
anywhere. Each visits the body once and raises ApiError for a request that cannot be served.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import msgspec

from rtp_llm.sampling_params import SamplingParams
from rtp_llm.server.errors import bad_request, unknown_model
from rtp_llm.server.openai.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    SamplingFields,
    TokenizeRequest,
)
from rtp_llm.server.prepare.jobs import AnswerOptions, ChatForm, CompletionForm, Echo, Job
from rtp_llm.server.prepare.parse import parse, refused, template_messages
from rtp_llm.server.prepare.render import check_template, render
from rtp_llm.server.prepare.sampling import (
    Lengths,
    Limits,
    answer_options,
    bad_words,
    chat_lengths,
    chat_logprobs,
    check_token_ids,
    completion_lengths,
    completion_logprobs,
    prompt_logprobs,
    sampling_params,
)
from rtp_llm.server.prepare.served_model import ServedModel
from rtp_llm.text.sequence import SequenceText
from rtp_llm.text.tokenizer import Tokenizer

# Characters per token of the context: of a text more than twice as long the beginning is looked
# at first.
MANY_CHARACTERS = (4, 16)
# Of a text that is truncated, so many characters per token of the context are looked at: no token
# is longer.
LONG_TOKEN = 128
# Cutting a text changes the tokens at the border only.
BORDER_TOKENS = 64

Prepared: TypeAlias = "PreparedChat | PreparedCompletion | PreparedBody"
T = TypeVar("T", ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)


@dataclass(frozen=True)
class PreparedBody:
    """The body of an answer that needs no engine. `ignored`: fields that nobody knows."""

    body: bytes
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class PreparedChat:
    """A chat that can be generated. `ignored`: fields that nobody knows."""

    jobs: list[Job]
    stream: bool
    form: ChatForm
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class PreparedCompletion:
    """A completion that can be generated: one job per prompt. `ignored`: as of a chat."""

    jobs: list[Job]
    stream: bool
    form: CompletionForm
    ignored: tuple[str, ...] = ()


def prepare_chat(body: bytes, model: ServedModel) -> PreparedChat:
    """The body of POST /v1/chat/completions; raises ApiError."""
    request, ignored = parse_request(body, ChatRequest, model)
    _check_best_of(request)
    _check_size(1, request, model)
    options = answer_options(request, chat_logprobs(request), _prompt_logprobs(request, model))
    lengths = chat_lengths(request, model.defaults, model.limits)
    messages = template_messages(request.messages)
    ids = _chat_ids(request, messages, model, lengths)
    params = sampling_params(
        request,
        model.defaults,
        model.limits,
        max_tokens=lengths.resolve(len(ids), model.limits),
        logprobs=options.top_logprobs,
        prompt_logprobs=options.prompt_logprobs,
        bad_words=bad_words(request, model.tokenizer),
    )
    last = messages[-1]
    echo = (last.get("content") or "") if request.echo and last["role"] == "assistant" else ""
    continues = bool(request.continue_final_message)
    return PreparedChat(
        jobs=[_job(request, model, ids, params, continues_prompt=continues)],
        stream=bool(request.stream),
        form=ChatForm(model.name, params.n, options, echo),
        ignored=ignored,
    )


def prepare_completion(body: bytes, model: ServedModel) -> PreparedCompletion:
    """The body of POST /v1/completions; raises ApiError."""
    request, ignored = parse_request(body, CompletionRequest, model)
    _check_best_of(request)
    options = answer_options(
        request, completion_logprobs(request), _prompt_logprobs(request, model)
    )
    prompts = _prompts(request, model)
    drop = request.max_tokens == 0 and bool(request.echo)
    jobs = _completion_jobs(request, model, prompts, options, drop)
    choices = jobs[0].params.n
    tokenizer = model.tokenizer
    form = CompletionForm(
        model=model.name,
        choices_per_prompt=choices,
        num_choices=choices * len(jobs),
        options=options,
        echoes=[_echo(tokenizer, *prompt) for prompt in prompts] if request.echo else None,
        drop_answer=drop,
    )
    return PreparedCompletion(
        jobs=jobs,
        stream=bool(request.stream),
        form=form,
        ignored=ignored,
    )


def prepare_tokenize(body: bytes, model: ServedModel) -> PreparedBody:
    """The body of POST /tokenize to that of its answer; raises ApiError."""
    request, ignored = parse_request(body, TokenizeRequest, model)
    check_template(request, model)
    if (request.prompt is None) == (request.messages is None):
        raise bad_request("Give one of prompt and messages.", param="prompt")
    if request.messages is not None:
        messages = template_messages(request.messages)
        text, add = render(request, messages, model), bool(request.add_special_tokens)
    else:
        text, add = request.prompt or "", request.add_special_tokens is not False
    if len(text) > model.max_tokenize_characters:
        raise bad_request(
            f"The text has {len(text)} characters; at most {model.max_tokenize_characters} are "
            "tokenised at once (see --max-tokenize-characters).",
            param="prompt" if request.messages is None else "messages",
            code="text_too_long",
        )
    ids = model.tokenizer.encode(text, add)
    content: dict[str, Any] = {
        "count": len(ids),
        "max_model_len": model.limits.max_model_len or None,
        "tokens": ids,
        "token_strs": model.tokenizer.tokens(ids) if request.return_token_strs else None,
    }
    return PreparedBody(msgspec.json.encode(content), ignored)


def prepare_detokenize(body: bytes, model: ServedModel) -> PreparedBody:
    """The body of POST /detokenize to that of its answer; raises ApiError."""
    request, ignored = parse_request(body, DetokenizeRequest, model)
    # The model may have more rows than the tokenizer has tokens.
    size = max(model.tokenizer.vocab_size, model.limits.vocab_size)
    check_token_ids("tokens", request.tokens, Limits(0, size))
    text = model.tokenizer.decode(request.tokens, bool(request.skip_special_tokens))
    return PreparedBody(msgspec.json.encode({"prompt": text}), ignored)


def parse_request(body: bytes, kind: type[T], model: ServedModel) -> tuple[T, tuple[str, ...]]:
    """The request, and the fields of it that nobody knows.

    Raises ApiError: of `parse`, and 404 for another model than the served one.
    """
    request, ignored = parse(body, kind, model.strict_fields)
    if request.model is not None and request.model != model.name:
        raise unknown_model(request.model, model.name)
    return request, ignored


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


def _chat_ids(
    request: ChatRequest, messages: list[dict[str, Any]], model: ServedModel, lengths: Lengths
) -> list[int]:
    text = render(request, messages, model)
    ids, _ = _encode(text, "messages", request, model, lengths, bool(request.add_special_tokens))
    if not ids:
        raise bad_request("The messages render to an empty prompt.", param="messages")
    return ids


def _encode(
    text: str,
    name: str,
    request: SamplingFields,
    model: ServedModel,
    lengths: Lengths,
    add_special_tokens: bool,
) -> tuple[list[int], bool]:
    """The ids of the field `name`, and whether all of them are there.

    `truncate_prompt_tokens` keeps the last of them; a text that it leaves little of is cut first.
    """
    keep, limit = request.truncate_prompt_tokens, model.limits.max_model_len
    if keep is None:
        _check_length(model.tokenizer, text, limit, name)
    else:
        text = text[-LONG_TOKEN * limit :]
    ids = model.tokenizer.encode(text, add_special_tokens)
    kept = lengths.truncate(ids, keep, model.limits)
    return kept, keep is None or len(kept) == len(ids)


def _prompts(request: CompletionRequest, model: ServedModel) -> list[tuple[str | None, list[int]]]:
    """(text if one was given and not cut, ids) of each prompt."""
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
    lengths = completion_lengths(request, model.defaults)
    text = None
    if isinstance(item, list):
        check_token_ids("prompt", item, model.limits)
        ids = lengths.truncate(item, request.truncate_prompt_tokens, model.limits)
    else:
        add = request.add_special_tokens is not False
        ids, whole = _encode(item, "prompt", request, model, lengths, add)
        text = item if whole else None
    if not ids:
        raise bad_request("prompt: must not be empty.", param="prompt", code="invalid_value")
    return text, ids


def _completion_jobs(
    request: CompletionRequest,
    model: ServedModel,
    prompts: list[tuple[str | None, list[int]]],
    options: AnswerOptions,
    drop: bool,
) -> list[Job]:
    lengths = completion_lengths(request, model.defaults)
    scored = [options.prompt_logprobs, options.top_logprobs if request.echo else None]
    words = bad_words(request, model.tokenizer)
    jobs: list[Job] = []
    for _, ids in prompts:
        if drop:
            # Only the prompt's log-probabilities are wanted; the engine samples one token.
            lengths.resolve(len(ids) + 1, model.limits)
        params = sampling_params(
            request,
            model.defaults,
            model.limits,
            max_tokens=1 if drop else lengths.resolve(len(ids), model.limits),
            logprobs=None if drop else options.top_logprobs,
            prompt_logprobs=max((each for each in scored if each is not None), default=None),
            bad_words=words,
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


def _prompt_logprobs(request: SamplingFields, model: ServedModel) -> int | None:
    return prompt_logprobs(request, model.max_prompt_logprobs, model.limits.vocab_size)


def _check_best_of(request: ChatRequest | CompletionRequest) -> None:
    if request.best_of not in (None, request.n or 1):
        raise refused("best_of", "best_of")


def _check_length(tokenizer: Tokenizer, text: str, limit: int, param: str) -> None:
    """Refuse a text that is far too long by its beginning, before megabytes are tokenised.

    A token rarely has so many characters; where it has, the whole text is tokenised after all.
    """
    for size in (each * limit for each in MANY_CHARACTERS):
        if len(text) <= 2 * size:
            return
        count = len(tokenizer.encode(text[:size], False))
        if count > limit + BORDER_TOKENS:
            raise bad_request(
                f"This model's context is {limit} tokens; the first {size} of {len(text)} "
                f"characters in the prompt alone make {count}.",
                param=param,
                code="context_length_exceeded",
            )
