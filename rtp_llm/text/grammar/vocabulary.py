# SPDX-License-Identifier: Apache-2.0
"""The served tokenizer as llguidance takes it."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from functools import cache
from typing import Protocol
from weakref import WeakKeyDictionary

import llguidance

from rtp_llm.text.grammar.errors import GrammarError


class Vocabulary(Protocol):
    """The required interface of a tokenizer (see rtp_llm.text.tokenizer.Tokenizer)."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def special_ids(self) -> Collection[int]: ...
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...

    @property
    def joins_bytes(self) -> bool: ...

    def token_bytes(self, token_id: int) -> bytes: ...
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...


_lock = threading.Lock()
_made: WeakKeyDictionary[Vocabulary, llguidance.LLTokenizer] = WeakKeyDictionary()


def vocabulary_of(tokenizer: Vocabulary) -> llguidance.LLTokenizer:
    """The tokenizer's vocabulary for the library, made once: a second or two for 150k tokens."""
    with _lock:
        if tokenizer not in _made:
            _made[tokenizer] = make_vocabulary(tokenizer, tokenizer.eos_token_ids)
        return _made[tokenizer]


def make_vocabulary(
    tokenizer: Vocabulary, eos_token_ids: Sequence[int], size: int | None = None
) -> llguidance.LLTokenizer:
    """The same for logits ``size`` wide, which may be more than the tokens.

    Raises GrammarError, also where it is less.
    """
    if not tokenizer.joins_bytes:
        raise GrammarError("the model's tokens are not pieces of its text, so no grammar can hold")
    source = _Source(tokenizer)
    missing = 0 if size is None else size - source.size
    if missing < 0:
        raise GrammarError(f"the tokenizer has {source.size} tokens and the model {size} logits")
    source.tokens += [b""] * missing
    wrapper = llguidance.TokenizerWrapper(source)
    return llguidance.LLTokenizer(wrapper, eos_token=list(eos_token_ids) or None)


@cache
def byte_vocabulary() -> llguidance.LLTokenizer:
    """A vocabulary with one token for each byte, to check grammars without a model."""
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()))


class _Bytes:
    bos_token_id: int | None = None
    eos_token_id = 256
    special_token_ids = (256,)
    tokens = (*(bytes([byte]) for byte in range(256)), b"<|end|>")

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


class _Source:
    """The attributes that llguidance.TokenizerWrapper reads."""

    bos_token_id: int | None = None

    def __init__(self, tokenizer: Vocabulary) -> None:
        self._tokenizer = tokenizer
        special = tokenizer.special_ids
        self.size = max(tokenizer.vocab_size, 1 + max(special, default=0))
        self.tokens = [tokenizer.token_bytes(token) for token in range(self.size)]
        self.special_token_ids = sorted(special)
        self.eos_token_id = next(iter(tokenizer.eos_token_ids), self.size - 1)

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)
