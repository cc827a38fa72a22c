"""What a request asks of the engine: sampling parameters, stop rules, lengths."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from rtp_llm.sampling_params import SamplingParams, check_vocabulary
from rtp_llm.server.errors import ApiError, bad_request
from rtp_llm.server.protocol import ChatRequest, CompletionRequest, SamplingFields
from rtp_llm.text.generation_defaults import GenerationDefaults

MAX_STOPS = 64
MAX_STOP_LENGTH = 1024
MAX_TOP_LOGPROBS = 20
COMPLETION_MAX_TOKENS = 16  # OpenAI's default of the legacy endpoint


@dataclass(frozen=True)
class Limits:
    """What the engine can take, and which ids end an answer.

    `eos_token_ids`: by the engine and by the tokenizer; `more_eos_token_ids`: those that only the
    tokenizer knows, which the engine must be told.
    """

    max_model_len: int
    vocab_size: int
    eos_token_ids: frozenset[int] = frozenset()
    more_eos_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Lengths:
    """max_tokens as asked, under the name that the client used; `default` when it asked none.

    `prompt_name`: the field that holds the prompt.
    """

    prompt_name: str
    name: str
    asked: int | None
    default: int | None

    def resolve(self, prompt_tokens: int, limits: Limits) -> int:
        """How many tokens may be generated behind this prompt.

        Raises ApiError 400 with the numbers when prompt and answer do not fit the context.
        """
        room = limits.max_model_len - prompt_tokens
        if self.asked is None and room >= 1:
            return room if self.default is None else min(max(self.default, 1), room)
        wanted = self.asked if self.asked is not None else 1
        if wanted > room:
            raise bad_request(
                f"This model's context is {limits.max_model_len} tokens; {prompt_tokens} in the "
                f"prompt and {wanted} for the answer ({self.name}) make {prompt_tokens + wanted}.",
                param=self.name if self.asked is not None and room >= 1 else self.prompt_name,
                code="context_length_exceeded",
            )
        return wanted


def chat_lengths(request: ChatRequest, defaults: GenerationDefaults) -> Lengths:
    """max_completion_tokens wins over max_tokens; without either: the rest of the context."""
    if request.max_completion_tokens is not None:
        return Lengths("messages", "max_completion_tokens", request.max_completion_tokens, None)
    return Lengths("messages", "max_tokens", request.max_tokens, defaults.max_tokens)


def completion_lengths(request: CompletionRequest, defaults: GenerationDefaults) -> Lengths:
    """Without max_tokens: generation_config.json's, or OpenAI's 16."""
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
) -> SamplingParams:
    """The request's values over the model's defaults over OpenAI's.

    Raises ApiError 400 naming the field that is out of its range.
    """
    values: dict[str, Any] = {
        name: defaults.pick(name, getattr(request, name), fallback)
        for name, fallback in _WITH_MODEL_DEFAULTS.items()
    }
    for name in _PLAIN:
        asked = getattr(request, name)
        if asked is not None:
            values[name] = asked
    # A request for a shorter answer than the model's shortest gets it.
    values.setdefault("min_tokens", min(defaults.min_tokens or 0, max_tokens))
    try:
        return SamplingParams(
            **values,
            max_tokens=max_tokens,
            stop=_stops(request),
            stop_token_ids=_stop_token_ids(request, limits),
            logit_bias=_logit_bias(request, limits),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )
    except ValueError as error:
        message = str(error)
        param = re.split(r"\W", message, maxsplit=1)[0] or None
        raise bad_request(message + ".", param=param, code="invalid_value") from error


_WITH_MODEL_DEFAULTS = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
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
    "priority",
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


def _logit_bias(request: SamplingFields, limits: Limits) -> dict[int, float]:
    bias: dict[int, float] = {}
    for key, value in (request.logit_bias or {}).items():
        if not re.fullmatch(r"[0-9]{1,10}", key):
            raise bad_request(
                f"logit_bias: the key {key!r} is not a token id.", "logit_bias", "invalid_value"
            )
        bias[int(key)] = value
    check_token_ids("logit_bias", list(bias), limits)
    return bias


def _stop_token_ids(request: SamplingFields, limits: Limits) -> tuple[int, ...]:
    ids = request.stop_token_ids or []
    check_token_ids("stop_token_ids", ids, limits)
    return (*ids, *(() if request.ignore_eos else limits.more_eos_token_ids))


def check_token_ids(name: str, ids: list[int], limits: Limits) -> None:
    """Raise ApiError 400 naming the first id that the model has not."""
    try:
        check_vocabulary(name, ids, limits.vocab_size)
    except ValueError as error:
        raise bad_request(f"{error}.", param=name, code="invalid_value") from error


def chat_logprobs(request: ChatRequest) -> int | None:
    """How many alternatives a chat asks for; None without logprobs."""
    top = request.top_logprobs
    if top is not None and not request.logprobs and top > 0:
        raise bad_request(
            "top_logprobs: needs logprobs to be true.", "top_logprobs", "invalid_value"
        )
    if top is not None and not 0 <= top <= MAX_TOP_LOGPROBS:
        raise _out_of_range("top_logprobs", top)
    return (top or 0) if request.logprobs else None


def completion_logprobs(request: CompletionRequest) -> int | None:
    """How many alternatives a completion asks for."""
    if request.logprobs is not None and not 0 <= request.logprobs <= MAX_TOP_LOGPROBS:
        raise _out_of_range("logprobs", request.logprobs)
    return request.logprobs


def _out_of_range(name: str, value: int) -> ApiError:
    message = f"{name}: {value} must be between 0 and {MAX_TOP_LOGPROBS}."
    return bad_request(message, name, "invalid_value")
