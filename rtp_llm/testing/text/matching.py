# SPDX-License-Identifier: Apache-2.0
"""Checks byte by byte which texts a grammar accepts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import llguidance

from rtp_llm.request.constraints import Grammar
from rtp_llm.text.grammar.vocabulary import vocabulary_of


class ByteVocabulary:
    """One token per byte, followed by special tokens, the first of which ends the text."""

    def __init__(self, specials: Sequence[str] = ("<|end|>",)) -> None:
        self._specials = tuple(specials)
        self.special_ids = frozenset(range(256, 256 + len(specials)))
        self.eos_token_ids = (256,)
        self.vocab_size = 256 + len(specials)
        self.joins_bytes = True

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else self._specials[token_id - 256].encode()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())


BYTES = ByteVocabulary()


def matcher(grammar: Grammar, vocabulary: ByteVocabulary = BYTES) -> llguidance.LLMatcher:
    """A matcher at the beginning; ValueError when the grammar does not compile."""
    made = llguidance.LLMatcher(vocabulary_of(vocabulary), grammar.text, log_level=0)
    if made.is_error():
        raise ValueError(made.get_error())
    return made


def accepts(
    grammar: Grammar | llguidance.LLMatcher,
    text: str | bytes,
    vocabulary: ByteVocabulary = BYTES,
) -> bool:
    """Whether the grammar accepts the whole `text` as a complete answer."""
    start = matcher(grammar, vocabulary) if isinstance(grammar, Grammar) else grammar.deep_copy()
    data = text.encode() if isinstance(text, str) else text
    taken = start.try_consume_tokens(list(data))
    if start.is_error():
        raise ValueError(start.get_error())
    return taken == len(data) and start.is_accepting()


def accepts_value(start: llguidance.LLMatcher, value: Any) -> bool:
    """Whether `value`, without whitespace, is accepted in some order of its properties."""
    return any(end.is_accepting() for end in _after(start, value))


def _after(start: llguidance.LLMatcher, value: Any) -> Iterator[llguidance.LLMatcher]:
    """The matcher after `value`, for each order of properties that it accepted."""
    if isinstance(value, list):
        for state in _took(start, "["):
            yield from _after_items(state, value, "")
    elif isinstance(value, dict):
        for state in _took(start, "{"):
            yield from _after_properties(state, value, "")
    else:
        yield from _took(start, scalar_text(value))


def _after_items(
    state: llguidance.LLMatcher, rest: list[Any], comma: str
) -> Iterator[llguidance.LLMatcher]:
    if not rest:
        yield from _took(state, "]")
        return
    for before in _took(state, comma):
        for reached in _after(before, rest[0]):
            yield from _after_items(reached, rest[1:], ",")


def _after_properties(
    state: llguidance.LLMatcher, rest: dict[str, Any], comma: str
) -> Iterator[llguidance.LLMatcher]:
    if not rest:
        yield from _took(state, "}")
    for name, value in rest.items():
        others = {key: each for key, each in rest.items() if key != name}
        for named in _took(state, f"{comma}{scalar_text(name)}:"):
            for reached in _after(named, value):
                yield from _after_properties(reached, others, ",")


def _took(state: llguidance.LLMatcher, text: str) -> list[llguidance.LLMatcher]:
    copy = state.deep_copy()
    data = list(text.encode())
    return [copy] if not data or copy.try_consume_tokens(data) == len(data) else []


def scalar_text(value: Any) -> str:
    """A string, number, boolean or null as llguidance writes it: no exponent, no 1.0."""
    if isinstance(value, float):
        return format(Decimal(repr(value)).normalize(), "f")
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
