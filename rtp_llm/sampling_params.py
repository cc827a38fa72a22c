"""What a request asks of the sampler and of the stop rules."""

from __future__ import annotations

import math
from collections.abc import Collection

import msgspec

MAX_SEQUENCES = 128
MAX_LOGPROBS = 100
MAX_NGRAM_SIZE = 128
MAX_LOGIT_BIAS = 4096
MAX_PRIORITY = 100
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """One request's sampling settings; every field is checked at construction.

    ``temperature`` 0 means greedy; ``top_k`` 0 or less means no limit. ``max_tokens`` None means
    up to the context. ``logprobs`` and ``prompt_logprobs`` are how many of the most likely tokens
    to report (0: the chosen one only). ``stop`` strings are matched on text, above the engine;
    ``stop_token_ids`` in the engine. A lower ``priority`` goes first.

    Raises:
        ValueError: a value is out of its range; the text names the field, the value and the range.
    """

    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    priority: int = 0

    def __post_init__(self) -> None:
        _check_int("n", self.n, 1, MAX_SEQUENCES)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 1, _INT32_MAX)
        _check_int("min_tokens", self.min_tokens, 0, _INT32_MAX)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens={self.min_tokens} must not exceed max_tokens={self.max_tokens}"
            )
        self._check_filters()
        self._check_penalties()
        self._check_lists()
        if self.seed is not None:
            _check_int("seed", self.seed, -_INT64_MAX - 1, _INT64_MAX)
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            if count is not None:
                _check_int(name, count, 0, MAX_LOGPROBS)
        _check_int("priority", self.priority, -MAX_PRIORITY, MAX_PRIORITY)

    def _check_filters(self) -> None:
        _check_float("temperature", self.temperature, 0.0, 100.0)
        _check_int("top_k", self.top_k, -_INT32_MAX, _INT32_MAX)
        _check_float("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise ValueError("top_p=0.0 must be greater than 0 and at most 1")
        _check_float("min_p", self.min_p, 0.0, 1.0)

    def _check_penalties(self) -> None:
        _check_float("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_int("no_repeat_ngram_size", self.no_repeat_ngram_size, 0, MAX_NGRAM_SIZE)

    def _check_lists(self) -> None:
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise ValueError(
                f"logit_bias has {len(self.logit_bias)} entries, at most {MAX_LOGIT_BIAS} are taken"
            )
        for token, bias in self.logit_bias.items():
            _check_int("logit_bias key", token, 0, _INT32_MAX)
            _check_float(f"logit_bias[{token}]", bias, -100.0, 100.0)
        if not isinstance(self.stop, tuple) or not all(
            isinstance(text, str) and text for text in self.stop
        ):
            raise ValueError(f"stop={self.stop!r} must be a tuple of strings that are not empty")
        if not isinstance(self.stop_token_ids, tuple):
            raise ValueError(f"stop_token_ids={self.stop_token_ids!r} must be a tuple of integers")
        for token in self.stop_token_ids:
            _check_int("stop_token_ids", token, 0, _INT32_MAX)

    @property
    def greedy(self) -> bool:
        """True when the arg max is taken, whatever the seed."""
        return self.temperature == 0.0 or self.top_k == 1


def check_vocabulary(name: str, ids: Collection[int], size: int) -> None:
    """Raise ValueError naming the first of ``ids`` that a vocabulary of ``size`` tokens has not."""
    if ids and (min(ids) < 0 or max(ids) >= size):
        wrong = next(token for token in ids if not 0 <= token < size)
        raise ValueError(f"{name}: token id {wrong} is outside the vocabulary of {size}")


def _check_int(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name}={value!r} must be an integer")
    if not low <= value <= high:
        raise ValueError(f"{name}={value} must be between {low} and {high}")


def _check_float(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name}={value!r} must be a finite number")
    if not low <= value <= high:
        raise ValueError(f"{name}={value} must be between {low} and {high}")
