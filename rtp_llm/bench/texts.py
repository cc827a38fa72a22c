# SPDX-License-Identifier: Apache-2.0
"""Texts of a given number of tokens: by a tokenizer, or from common words of known size."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rtp_llm.text.tokenizer import Tokenizer

_ROUNDS = 10
_CHARACTERS_PER_TOKEN = 4
_COMMON = (
    "the of and to in is that for it as was with be by on not he his but at are this have from "
    "or had an they which one you were all her she there would their we him been has when who "
    "will no more if out so up said what its about than into them can only other time new some "
    "could these two may first then do any like my now over such our man me even most made after "
    "also did many off before must well back through years much where your way down should "
    "because long each just state people those too how little good world make very year still "
    "see own work men day get here old life both between being under three never know same last "
    "another while us might great go come since against right came take used himself few house"
)
WORDS = _COMMON.split()


class Texts(Protocol):
    """Makes texts for samples and counts their tokens."""

    def count(self, text: str) -> int:
        """The number of tokens of a text."""
        ...

    def make(self, source: random.Random, tokens: int, prefix: str = "") -> str:
        """A random text of the given number of tokens that begins with ``prefix``."""
        ...


@dataclass(frozen=True)
class TokenizerTexts:
    """Uses the tokenizer of a model folder: exact, except where no choice of tokens fits."""

    tokenizer: Tokenizer

    def count(self, text: str) -> int:
        """Return the number of tokens of `text`, without special tokens."""
        return len(self.tokenizer.encode(text, add_special_tokens=False))

    def make(self, source: random.Random, tokens: int, prefix: str = "") -> str:
        """Return a text of `tokens` tokens that begins with `prefix`."""
        text = prefix
        for _ in range(_ROUNDS):
            ids = self.tokenizer.encode(text, add_special_tokens=False)
            if len(ids) == tokens:
                break
            missing = " ".join(source.choices(WORDS, k=max(0, tokens - len(ids))))
            more = self.tokenizer.encode(f" {missing}", add_special_tokens=False)
            text = self.tokenizer.decode([*ids, *more][:tokens])
        return text


@dataclass(frozen=True)
class WordTexts:
    """Uses common words of ``per_word`` tokens on average, plus ``overhead`` tokens of the chat
    template. Other texts count one token per four characters."""

    per_word: float = 1.0
    overhead: float = 0.0

    def count(self, text: str) -> int:
        """Estimate the number of tokens of `text` from its length; at least 1."""
        return max(1, round(len(text) / _CHARACTERS_PER_TOKEN))

    def make(self, source: random.Random, tokens: int, prefix: str = "") -> str:
        """Return a text of about `tokens` tokens that begins with `prefix`."""
        words = prefix.split()
        wanted = max(1, round((tokens - self.overhead) / self.per_word))
        return " ".join([*words, *source.choices(WORDS, k=max(0, wanted - len(words)))])
