# SPDX-License-Identifier: Apache-2.0
"""What a request specifies for sampling and stopping."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

DEFAULT_MAX_TOKENS = 16  # of offline generation and of /v1/completions, as in vLLM and OpenAI's API
MAX_SEQUENCES = 128
MAX_LOGPROBS = 2**24  # as large as vocabularies may be
MAX_NGRAM_SIZE = 128
MAX_LOGIT_BIAS = 4096
MAX_LOGPROB_TOKEN_IDS = 128
MAX_BAD_WORDS = 512
MAX_BAD_WORD_TOKENS = 32
MAX_PRIORITY = 100
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1


# Arguments of other engines that are recognised but not supported, and why.
_UNSUPPORTED = {
    "best_of": "candidates are not ranked; set n",
    "use_beam_search": "beam searches are made by LLM.beam_search",
    "beam_width": "beam searches are made by LLM.beam_search",
    "length_penalty": "beam searches are made by LLM.beam_search",
    "early_stopping": "beam searches are made by LLM.beam_search",
    "guided_decoding": "set structured_outputs=StructuredOutputsParams(...)",
    "json_schema": "set structured_outputs=StructuredOutputsParams(json=...)",
    "regex": "set structured_outputs=StructuredOutputsParams(regex=...)",
    "ebnf": "set structured_outputs=StructuredOutputsParams(grammar=...)",
    "logits_processors": "give them to LLM.generate(..., logits_processors=[...])",
    "detokenize": "the text is always made; read token_ids where only those are wanted",
    "spaces_between_special_tokens": "the text is what the tokenizer's decoder makes of the tokens",
    "output_kind": "LLM.generate returns whole outputs; the HTTP server streams",
    "extra_args": "there are no further arguments",
    "thinking_token_budget": "thinking cannot be limited yet",
    "mirostat": "this way of sampling is not implemented",
    "max_new_tokens": "it is called max_tokens here",
    "do_sample": "temperature=0 takes the most likely token, any other value samples",
    "num_return_sequences": "it is called n here",
}
_SWITCHES = ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output", "speculate")
_UNKNOWN_ARGUMENT = re.compile(r"Unexpected keyword argument '(.*)'")
_T = TypeVar("_T")


class _ChecksArguments(msgspec.StructMeta):
    """Says which argument was meant, or why it is not supported."""

    def __call__(cls: type[_T], *args: Any, **kwargs: Any) -> _T:
        try:
            made: _T = super().__call__(*args, **kwargs)  # type: ignore[misc]
            return made
        except TypeError as error:
            unknown = _UNKNOWN_ARGUMENT.fullmatch(str(error))
            if unknown is None:
                raise
            names: tuple[str, ...] = cls.__struct_fields__  # type: ignore[attr-defined]
            raise TypeError(_describe_unknown(unknown[1], names)) from error


def _describe_unknown(name: str, names: Sequence[str]) -> str:
    reason = _UNSUPPORTED.get(name)
    if reason is not None:
        return f"SamplingParams: {name} is not supported: {reason}"
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
    return f"SamplingParams: no argument is called {name}; {hint}"


# What each of the first six of StructuredOutputsParams may be.
_KINDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "json": ((str, dict, bool), "a JSON schema, as a dict or as text"),
    "regex": (str, "a string"),
    "choice": ((list, tuple), "a list of strings"),
    "grammar": (str, "a string"),
    "json_object": (bool, "True"),
    "structural_tag": ((str, dict), "a structural tag, as a dict or as text"),
}


class StructuredOutputsParams(msgspec.Struct, frozen=True, kw_only=True):
    """What an output obeys, in vLLM's names: exactly one of the first six.

    ``json`` is a JSON schema, as an object or as a text; ``grammar`` is EBNF (GBNF) or Lark; the
    last three say how JSON is written.

    Raises:
        ValueError: none of the six is given, or two.
    """

    json: str | dict[str, Any] | bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        names = self.__struct_fields__[:6]
        absent = {"json_object": (None, False)}
        given = [n for n in names if getattr(self, n) not in absent.get(n, (None, ""))]
        if len(given) != 1:
            shown = " and ".join(given) if given else "none"
            raise ValueError(
                f"structured_outputs needs one of {', '.join(names)}; {shown} is given"
            )
        kinds, words = _KINDS[given[0]]
        if not isinstance(getattr(self, given[0]), kinds):
            value = getattr(self, given[0])
            raise ValueError(f"structured_outputs: {given[0]}={value!r} must be {words}")


class SamplingParams(
    msgspec.Struct, metaclass=_ChecksArguments, tag="sample", frozen=True, kw_only=True
):
    """One request's sampling settings; every field is checked at construction.

    ``temperature`` 0 means greedy; ``top_k`` 0 or less means no limit. ``typical_p``: of the tokens
    that the other filters leave, those about as surprising as the distribution is on average, that
    have this probability together; 1: all. ``max_tokens`` None means
    up to the context; without it ``LLM.generate`` takes 16 and ``LLM.chat`` None. ``logprobs`` and
    ``prompt_logprobs`` are how many of the most likely tokens to report (0: the chosen one only;
    of a prompt -1: the whole vocabulary);
    ``logprob_token_ids`` reports these instead. ``stop`` strings (one or several) are matched on
    text, above the engine; ``stop_token_ids`` in the engine. A lower ``priority`` goes first.

    Only ``allowed_token_ids`` are generated, if given; ``bad_words`` (strings) never are. These
    reach the engine as ``bad_words_token_ids``: the last token is banned after the others.
    ``truncate_prompt_tokens`` keeps the prompt's last so many tokens, -1: as many as fit.
    ``speculate`` False: nothing is drafted for this request where the engine speculates.
    ``structured_outputs``: what the output obeys, see StructuredOutputsParams, or a dict of its
    arguments; in a chat from the end of the thinking on.

    Raises:
        ValueError: a value is out of its range; the text names the field, the value and the range.
        TypeError: there is no such argument; the text names the nearest one, or the reason.
    """

    n: int = 1
    max_tokens: int | msgspec.UnsetType | None = msgspec.UNSET
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: Sequence[int] = ()
    allowed_token_ids: Sequence[int] | None = None
    bad_words: str | Sequence[str] = ()
    bad_words_token_ids: Sequence[Sequence[int]] = ()
    truncate_prompt_tokens: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    priority: int = 0
    speculate: bool = True
    structured_outputs: StructuredOutputsParams | None = None

    def __post_init__(self) -> None:
        _check_int("n", self.n, 1, MAX_SEQUENCES)
        if self.max_tokens is not None and self.max_tokens is not msgspec.UNSET:
            _check_int("max_tokens", self.max_tokens, 1, _INT32_MAX)
        _check_int("min_tokens", self.min_tokens, 0, _INT32_MAX)
        if self.max_tokens and self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens={self.min_tokens} must not exceed max_tokens={self.max_tokens}"
            )
        self._check_filters()
        self._check_penalties()
        self._check_lists()
        self._check_bad_words()
        if self.seed is not None:
            _check_int("seed", self.seed, -_INT64_MAX - 1, _INT64_MAX)
        if self.logprobs is not None:
            _check_int("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.prompt_logprobs is not None:
            _check_int("prompt_logprobs", self.prompt_logprobs, -1, _INT32_MAX)
        if self.truncate_prompt_tokens is not None and self.truncate_prompt_tokens != -1:
            _check_int("truncate_prompt_tokens", self.truncate_prompt_tokens, 1, _INT32_MAX)
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}={getattr(self, name)!r} must be true or false")
        _check_int("priority", self.priority, -MAX_PRIORITY, MAX_PRIORITY)
        if self.structured_outputs is not None:
            _set(self, "structured_outputs", _structured_outputs(self.structured_outputs))

    def _check_filters(self) -> None:
        _check_float("temperature", self.temperature, 0.0, 100.0)
        _check_int("top_k", self.top_k, -_INT32_MAX, _INT32_MAX)
        _check_float("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise ValueError("top_p=0.0 must be greater than 0 and at most 1")
        _check_float("min_p", self.min_p, 0.0, 1.0)
        _check_float("typical_p", self.typical_p, 0.0, 1.0)
        if self.typical_p == 0.0:
            raise ValueError("typical_p=0.0 must be greater than 0 and at most 1")

    def _check_penalties(self) -> None:
        _check_float("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_int("no_repeat_ngram_size", self.no_repeat_ngram_size, 0, MAX_NGRAM_SIZE)

    def _check_lists(self) -> None:
        _set(self, "logit_bias", self.logit_bias or {})
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise ValueError(
                f"logit_bias has {len(self.logit_bias)} entries, at most {MAX_LOGIT_BIAS} are taken"
            )
        for token, bias in self.logit_bias.items():
            _check_int("logit_bias key", token, 0, _INT32_MAX)
            _check_float(f"logit_bias[{token}]", bias, -100.0, 100.0)
        _set(self, "stop", _texts("stop", self.stop))
        for name in ("stop_token_ids", "logprob_token_ids"):
            _set(self, name, _token_ids(name, getattr(self, name)))
        if self.allowed_token_ids is not None:
            _set(self, "allowed_token_ids", _token_ids("allowed_token_ids", self.allowed_token_ids))
            if not self.allowed_token_ids:
                raise ValueError("allowed_token_ids=[] allows no token; leave it out to allow all")
        if len(self.logprob_token_ids) > MAX_LOGPROB_TOKEN_IDS:
            raise ValueError(
                f"logprob_token_ids has {len(self.logprob_token_ids)} entries, at most "
                f"{MAX_LOGPROB_TOKEN_IDS} are taken"
            )

    def _check_bad_words(self) -> None:
        _set(self, "bad_words", _texts("bad_words", self.bad_words))
        sequences = self.bad_words_token_ids or ()
        if len(self.bad_words) > MAX_BAD_WORDS // 2 or len(sequences) > MAX_BAD_WORDS:
            raise ValueError(
                f"bad_words has too many entries, at most {MAX_BAD_WORDS // 2} are taken"
            )
        words = tuple(_token_ids("bad_words_token_ids", word) for word in sequences)
        for word in words:
            if not 1 <= len(word) <= MAX_BAD_WORD_TOKENS:
                raise ValueError(
                    f"bad_words has an entry of {len(word)} tokens; it must have between 1 and "
                    f"{MAX_BAD_WORD_TOKENS}"
                )
        _set(self, "bad_words_token_ids", words)

    @property
    def greedy(self) -> bool:
        """True when the arg max is taken, whatever the seed."""
        return self.temperature == 0.0 or self.top_k == 1


def _structured_outputs(given: object) -> StructuredOutputsParams:
    """What was given, or what a dict of its arguments makes."""
    if isinstance(given, StructuredOutputsParams):
        return given
    if not isinstance(given, dict):
        raise ValueError(
            f"structured_outputs={given!r} must be StructuredOutputsParams(...) or a dict of its "
            "arguments"
        )
    names = StructuredOutputsParams.__struct_fields__
    for name in given:
        if name not in names:
            raise ValueError(f"structured_outputs has no {name!r}; it has {', '.join(names)}")
    return StructuredOutputsParams(**given)


def check_vocabulary(name: str, ids: Collection[int], size: int) -> None:
    """Raise ValueError naming the first of ``ids`` that a vocabulary of ``size`` tokens has not."""
    if ids and (min(ids) < 0 or max(ids) >= size):
        wrong = next(token for token in ids if not 0 <= token < size)
        raise ValueError(f"{name}: token id {wrong} is outside the vocabulary of {size}")


def check_token_fields(params: SamplingParams, size: int) -> None:
    """``check_vocabulary`` for every field of ``params`` that names tokens."""
    check_vocabulary("stop_token_ids", params.stop_token_ids, size)
    check_vocabulary("logit_bias", params.logit_bias, size)
    check_vocabulary("logprob_token_ids", params.logprob_token_ids, size)
    check_vocabulary("allowed_token_ids", params.allowed_token_ids or (), size)
    for word in params.bad_words_token_ids:
        check_vocabulary("bad_words_token_ids", word, size)


def truncate_prompt(
    ids: list[int], keep: int | None, max_model_len: int, max_tokens: int, side: str = "left"
) -> list[int]:
    """The last ``keep`` of ``ids``; None: all, -1: as many as leave ``max_tokens`` their place.

    ``side`` "right": the first of them instead. Raises ValueError when it is more than the context.
    """
    if keep is None:
        return ids
    if keep == -1:
        keep = max(1, max_model_len - max_tokens)
    if keep > max_model_len:
        raise ValueError(
            f"truncate_prompt_tokens={keep} must not exceed the model's context of {max_model_len}"
        )
    return ids[:keep] if side == "right" else ids[-keep:]


def _set(params: SamplingParams, name: str, value: object) -> None:
    """A field's value in its plain form; only while the object is made."""
    msgspec.structs.force_setattr(params, name, value)


def _texts(name: str, value: object) -> tuple[str, ...]:
    """One string, several, or None, as a tuple."""
    several: Any = (value,) if isinstance(value, str) else value or ()
    if not _is_list(several) or not all(isinstance(text, str) and text for text in several):
        raise ValueError(f"{name}={value!r} must be a text or a list of texts that are not empty")
    return tuple(several)


def _token_ids(name: str, value: object) -> tuple[int, ...]:
    """A list of token ids, or None, as a tuple."""
    if value is not None and not _is_list(value):
        raise ValueError(f"{name}={value!r} must be a list of integers")
    ids: tuple[int, ...] = tuple(value or ())  # type: ignore[arg-type]
    for token in ids:
        _check_int(name, token, 0, _INT32_MAX)
    return ids


def _is_list(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | bytearray | dict)


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
