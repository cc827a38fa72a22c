# SPDX-License-Identifier: Apache-2.0
"""Ranges and lengths that /openapi.json gives for fields of requests, as the checks have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rtp_llm.config.refusals import get_refusal
from rtp_llm.request import sampling_params as params
from rtp_llm.server.turn.render import THINKING_SWITCHES
from rtp_llm.server.turn.sampling import MAX_STOP_LENGTH, MAX_STOPS
from rtp_llm.server.types.bounds import MAX_CACHE_SALT
from rtp_llm.text.stop_regex import MAX_PATTERN_LENGTH, MAX_PATTERNS

Schema = dict[str, Any]
_RANGES: Mapping[str, tuple[float | None, float | None]] = {
    "n": (1, params.MAX_SEQUENCES),
    "max_tokens": (1, None),
    "max_completion_tokens": (1, None),
    "max_output_tokens": (1, None),
    "min_tokens": (0, None),
    "temperature": (0, 100),
    "min_p": (0, 1),
    "top_k": (-(2**31 - 1), 2**31 - 1),
    "repetition_penalty": (0.01, 100),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "no_repeat_ngram_size": (0, params.MAX_NGRAM_SIZE),
    "seed": (-(2**63), 2**63 - 1),
    "priority": (-params.MAX_PRIORITY, params.MAX_PRIORITY),
    "truncate_prompt_tokens": (1, None),
}
_LONGEST = {"logprob_token_ids": params.MAX_LOGPROB_TOKEN_IDS}
_TOKEN_IDS = ("stop_token_ids", "allowed_token_ids", "logprob_token_ids", "tokens")


@dataclass(frozen=True, kw_only=True)
class Served:
    """Facts about the served model for the document; zeros while they are unknown.

    `max_sequences`: of one request; `max_logprobs`, `max_prompt_logprobs`: as the settings;
    `trusts_templates`: requests may bring a chat template; `calls_tools`, `thinks`: the model's
    forms of tool calls and of thinking are known; `template_variables`: the chat template's;
    `vector_size`, `matryoshka`: see ModelFacts; `prompt_names`: of texts before inputs.
    """

    names: tuple[str, ...]
    max_model_len: int = 0
    vocab_size: int = 0
    max_sequences: int = 0
    max_logprobs: int = 20
    max_prompt_logprobs: int = 0
    trusts_templates: bool = False
    calls_tools: bool = False
    thinks: bool = False
    template_variables: frozenset[str] = frozenset()
    vector_size: int = 0
    matryoshka: tuple[int, ...] | None = None
    prompt_names: tuple[str, ...] = ()

    @property
    def variables(self) -> frozenset[str]:
        """Those that a template may read which a request is rendered with."""
        own = ("documents", "reasoning_effort", *THINKING_SWITCHES)
        return self.template_variables.union(own if self.trusts_templates else ())


def bound(properties: Schema, served: Served) -> None:
    """Ranges and lengths that the checks of requests have."""
    for name, (low, high) in {**_RANGES, **_ranges_of(served)}.items():
        for each in types_of(properties.get(name), "integer", "number"):
            if low is not None:
                each["minimum"] = low
            if high is not None:
                each["maximum"] = high
    if not served.trusts_templates and "chat_template" in properties:
        properties["chat_template"] = _nothing("--trust-request-chat-template allows it.")
    if "documents" not in served.variables and "documents" in properties:
        said = get_refusal("request", "documents").reason
        properties["documents"] = {"enum": [None, []], "description": said}
    if "truncate_prompt_tokens" in properties:
        properties["truncate_prompt_tokens"]["anyOf"].insert(0, {"const": -1})
    if "model" in properties:
        properties["model"] = {"enum": [*served.names, None]}
    for name in ("top_p", "typical_p"):
        for each in types_of(properties.get(name), "number"):
            each |= {"exclusiveMinimum": 0, "maximum": 1}
    _bound_lists(properties, served)


def _ranges_of(served: Served) -> Mapping[str, tuple[float | None, float | None]]:
    """Those that depend on the model."""
    ranges: dict[str, tuple[float | None, float | None]] = {}
    if served.max_model_len:
        answer = served.max_model_len - 1  # a prompt has a token at least
        names = ("max_tokens", "max_completion_tokens", "max_output_tokens")
        ranges |= dict.fromkeys(names, (1, answer))
        ranges["min_tokens"] = (0, answer)
        ranges["truncate_prompt_tokens"] = (1, served.max_model_len)
    for name, most in (
        ("prompt_logprobs", served.max_prompt_logprobs),
        ("top_logprobs", served.max_logprobs),
        ("logprobs", served.max_logprobs),
    ):
        whole = most == -1 or 0 < served.vocab_size <= most
        ranges[name] = (-1, served.vocab_size or None) if whole else (0, most)
    ranges["n"] = (1, max_choices(served))
    return ranges


def max_choices(served: Served) -> int:
    return min(params.MAX_SEQUENCES, served.max_sequences or params.MAX_SEQUENCES)


def _bound_lists(properties: Schema, served: Served) -> None:
    for name in _TOKEN_IDS:
        for each in types_of(properties.get(name), "array"):
            each["items"] = token_id(served.vocab_size)
            if name in _LONGEST:
                each["maxItems"] = _LONGEST[name]
            if name == "allowed_token_ids":
                each["minItems"] = 1
    for each in types_of(properties.get("logit_bias"), "object"):
        each["propertyNames"] = {"pattern": "^(0|[1-9][0-9]{0,9})$"}
        each["maxProperties"] = params.MAX_LOGIT_BIAS
        each["additionalProperties"] = {"type": "number", "minimum": -100, "maximum": 100}
    for each in types_of(properties.get("messages"), "array"):
        each["minItems"] = 1
    for each in types_of(properties.get("cache_salt"), "string"):
        each["maxLength"] = MAX_CACHE_SALT
    text = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_LENGTH}
    for name, most in (
        ("stop", MAX_STOPS),
        ("stop_sequences", MAX_STOPS),
        ("bad_words", params.MAX_BAD_WORDS // 2),
    ):
        for each in types_of(properties.get(name), "array"):
            each |= {"items": text, "maxItems": most}
    for each in types_of(properties.get("stop"), "string"):
        each |= text
    pattern = text | {"format": "regex", "maxLength": MAX_PATTERN_LENGTH}
    for each in types_of(properties.get("stop_regex"), "array"):
        each |= {"items": pattern, "maxItems": MAX_PATTERNS}
    for each in types_of(properties.get("stop_regex"), "string"):
        each |= pattern


def token_id(vocab_size: int) -> Schema:
    return {"type": "integer", "minimum": 0} | ({"maximum": vocab_size - 1} if vocab_size else {})


def _nothing(otherwise: str) -> Schema:
    return {"enum": [None, ""], "description": otherwise}


def types_of(schema: Schema | None, *names: str) -> Iterable[Schema]:
    """The alternatives of a property that have one of these types."""
    for each in (schema or {}).get("anyOf", [schema] if schema else []):
        if each.get("type") in names:
            yield each
