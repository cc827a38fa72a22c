# SPDX-License-Identifier: Apache-2.0
"""Engine parameters of a request: sampling, stop conditions, lengths."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from rtp_llm.request.sampling_params import (
    MAX_BAD_WORDS,
    SamplingParams,
    check_token_fields,
    check_vocabulary,
    truncate_prompt,
)
from rtp_llm.server.types.errors import bad_request
from rtp_llm.server.types.openai_bodies import ChatRequest, CompletionRequest, SamplingFields
from rtp_llm.text.bad_words import bad_word_ids
from rtp_llm.text.generation_defaults import GenerationDefaults
from rtp_llm.text.stop_regex import StopRegexError, check_stop_regex
from rtp_llm.text.tokenizer import Tokenizer

MAX_STOPS = 64
MAX_STOP_LENGTH = 1024
COMPLETION_MAX_TOKENS = 16  # OpenAI's default for the legacy endpoint


@dataclass(frozen=True)
class Limits:
    """The engine's limits, and the ids that end an answer.

    `eos_token_ids`: known to the engine or the tokenizer; `more_eos_token_ids`: known only to the
    tokenizer, so they have to be sent to the engine.
    """

    max_model_len: int
    vocab_size: int
    eos_token_ids: frozenset[int] = frozenset()
    more_eos_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Lengths:
    """The requested max_tokens, under the client's name for it; `default` if there is none.

    `prompt_name`: the field with the prompt; `clamp`: reduce what exceeds the context to what fits.
    """

    prompt_name: str
    name: str
    requested: int | None
    default: int | None
    clamp: bool = False

    def truncate(self, ids: list[int], request: SamplingFields, limits: Limits) -> list[int]:
        """Truncate a prompt to `truncate_prompt_tokens`: keeps its end, or with `truncation_side`
        "right" its beginning. Raises ApiError 400 if the number is out of range.

        -1 leaves room for the requested answer.
        """
        keep, side = request.truncate_prompt_tokens, request.truncation_side or "left"
        if keep is not None and keep < 1 and keep != -1:
            raise bad_request(
                f"truncate_prompt_tokens={keep} must be -1 or between 1 and "
                f"{limits.max_model_len}.",
                "truncate_prompt_tokens",
                "invalid_value",
            )
        try:
            return truncate_prompt(ids, keep, limits.max_model_len, self.requested or 1, side)
        except ValueError as error:
            raise bad_request(f"{error}.", "truncate_prompt_tokens", "invalid_value") from error

    def resolve(self, prompt_tokens: int, limits: Limits) -> int:
        """The maximum number of tokens to generate after this prompt.

        Raises ApiError 400 with the numbers if prompt and answer do not fit the context.
        """
        room = limits.max_model_len - prompt_tokens
        if self.requested is None and room >= 1:
            return room if self.default is None else min(max(self.default, 1), room)
        wanted = self.requested if self.requested is not None else 1
        if self.clamp and room >= 1:
            wanted = min(wanted, room)
        if wanted > room:
            raise bad_request(
                f"This model's context is {limits.max_model_len} tokens; {prompt_tokens} in the "
                f"prompt and {wanted} for the answer ({self.name}) make {prompt_tokens + wanted}.",
                param=self.name if self.requested is not None and room >= 1 else self.prompt_name,
                code="context_length_exceeded",
            )
        return wanted


def chat_lengths(request: ChatRequest, defaults: GenerationDefaults, limits: Limits) -> Lengths:
    """max_completion_tokens overrides max_tokens; without either, the rest of the context.

    Raises ApiError 400 for an invalid max_tokens, even if it is overridden.
    """
    if request.max_completion_tokens is not None:
        most = limits.max_model_len - 1
        if request.max_tokens is not None and not 1 <= request.max_tokens <= most:
            raise bad_request(
                f"max_tokens={request.max_tokens} must be between 1 and {most}.",
                "max_tokens",
                "invalid_value",
            )
        return Lengths("messages", "max_completion_tokens", request.max_completion_tokens, None)
    return Lengths("messages", "max_tokens", request.max_tokens, defaults.max_tokens)


def completion_lengths(request: CompletionRequest, defaults: GenerationDefaults) -> Lengths:
    """Lengths of a completion; max_tokens defaults to generation_config.json's, or OpenAI's 16."""
    default = defaults.pick("max_tokens", None, COMPLETION_MAX_TOKENS)
    return Lengths("prompt", "max_tokens", request.max_tokens, default)


def sampling_params(
    request: SamplingFields,
    defaults: GenerationDefaults,
    limits: Limits,
    *,
    max_tokens: int,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
    bad_words: tuple[tuple[int, ...], ...] = (),
) -> SamplingParams:
    """The request's values, then the model's defaults, then OpenAI's; `bad_words` as token ids.

    Raises ApiError 400 naming the field that is out of range.
    """
    values: dict[str, Any] = {
        name: defaults.pick(name, getattr(request, name), fallback)
        for name, fallback in _WITH_MODEL_DEFAULTS.items()
    }
    plain = {name: getattr(request, name) for name in _PLAIN}
    values |= {name: value for name, value in plain.items() if value is not None}
    # A request for an answer shorter than the model's minimum gets it.
    values.setdefault("min_tokens", min(defaults.min_tokens or 0, max_tokens))
    try:
        params = SamplingParams(
            **values,
            max_tokens=max_tokens,
            stop=_stops(request),
            stop_token_ids=_stop_token_ids(request, limits),
            logit_bias=_logit_bias(request),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            bad_words_token_ids=bad_words,
        )
        check_token_fields(params, limits.vocab_size)
        return params
    except ValueError as error:
        message = str(error)
        param = re.split(r"\W", message, maxsplit=1)[0] or None
        raise bad_request(message + ".", param=param, code="invalid_value") from error


_WITH_MODEL_DEFAULTS = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
}
_PLAIN = (
    "n",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "min_tokens",
    "ignore_eos",
    "allowed_token_ids",
    "logprob_token_ids",
    "priority",
    "speculate",
)


def _stops(request: SamplingFields) -> tuple[str, ...]:
    stop = request.stop
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MAX_STOPS or any(len(text) > MAX_STOP_LENGTH for text in stops):
        raise bad_request(
            f"stop: at most {MAX_STOPS} strings of at most {MAX_STOP_LENGTH} characters are taken.",
            param="stop",
            code="invalid_value",
        )
    return stops


def stop_regex(request: SamplingFields) -> tuple[str, ...]:
    """The stop patterns; raises ApiError 400 for unusable ones."""
    given = request.stop_regex
    patterns = (given,) if isinstance(given, str) else tuple(given or ())
    try:
        check_stop_regex(patterns)
    except StopRegexError as error:
        raise bad_request(f"stop_regex: {error}.", "stop_regex", "invalid_value") from error
    return patterns


_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")  # no leading zeros: each id has one key


def _logit_bias(request: SamplingFields) -> dict[int, float]:
    bias: dict[int, float] = {}
    for key, value in (request.logit_bias or {}).items():
        if not _TOKEN_ID.fullmatch(key):
            raise bad_request(
                f"logit_bias: the key {key!r} is not a token id.", "logit_bias", "invalid_value"
            )
        bias[int(key)] = value
    return bias


def _stop_token_ids(request: SamplingFields, limits: Limits) -> tuple[int, ...]:
    ids = request.stop_token_ids or []
    return (*ids, *(() if request.ignore_eos else limits.more_eos_token_ids))


def check_token_ids(name: str, ids: list[int], limits: Limits) -> None:
    """Raise ApiError 400 naming the first id that is not in the vocabulary."""
    try:
        check_vocabulary(name, ids, limits.vocab_size)
    except ValueError as error:
        raise bad_request(f"{error}.", param=name, code="invalid_value") from error


def bad_words(request: SamplingFields, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """The token ids of `bad_words`; raises ApiError 400 for too many or too long ones."""
    given = request.bad_words or ()
    words = (given,) if isinstance(given, str) else given
    most = MAX_BAD_WORDS // 2
    if len(words) > most or any(len(text) > MAX_STOP_LENGTH for text in words):
        raise bad_request(
            f"bad_words: at most {most} texts of at most {MAX_STOP_LENGTH} characters are taken.",
            param="bad_words",
            code="invalid_value",
        )
    try:
        return bad_word_ids(tokenizer, words)
    except ValueError as error:
        raise bad_request(f"{error}.", "bad_words", "invalid_value") from error
