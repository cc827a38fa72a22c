# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities for the messages of a response."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from rtp_llm.server.generation.chat_logprobs import ChatLogprobs
from rtp_llm.server.generation.generation import LogprobEntry
from rtp_llm.server.protocols.responses.events import Logprob, TopLogprob
from rtp_llm.server.types.jobs import AnswerOptions
from rtp_llm.text.parsers.deltas import TextDelta
from rtp_llm.text.tokenizer import Tokenizer


class TextLogprobs:
    """Log-probabilities of one answer, for the tokens of its texts only."""

    def __init__(self, tokenizer: Tokenizer, options: AnswerOptions) -> None:
        self._shown = ChatLogprobs(tokenizer, options)
        self._entries: list[LogprobEntry] = []
        self._length = 0  # visible text of an answer without a parser
        self._waiting: list[Logprob] = []
        self.message: list[Logprob] = []
        """Log-probabilities of the open message."""

    def add(self, entries: Sequence[LogprobEntry]) -> None:
        """Add the log-probabilities of the next deltas."""
        self._entries += entries

    def take(self, delta: TextDelta) -> None:
        """Take the entries of new text, which may be held back before it goes to a message."""
        if delta.tokens is not None:
            entries = [self._entries[i] for i in delta.tokens if i < len(self._entries)]
        else:  # without a parser, all tokens belong to the text, except one that ends it
            self._length += len(delta.text)
            entries = [each for each in self._entries if each.offset < self._length]
            self._entries = self._entries[len(entries) :]
        content = self._shown.content(entries)["content"]
        self._waiting += msgspec.convert(content, list[Logprob])

    def begin(self, *, is_first: bool) -> None:
        """Begin a message; leading line breaks are dropped unless it is the first block."""
        self.message = []
        if is_first:
            return
        blank = list(itertools.takewhile(str.isspace, (each.token for each in self._waiting)))
        while blank and "\n" not in blank[-1]:
            blank.pop()
        self._waiting = self._waiting[len(blank) :]

    def grow(self, text: str) -> list[Logprob]:
        """Move the entries of new text to the message and return them."""
        end = len(self._waiting)
        if not text[-1:].isspace():  # trailing white space is held back
            while end and self._waiting[end - 1].token.isspace():
                end -= 1
        gained, self._waiting = self._waiting[:end], self._waiting[end:]
        self.message += gained
        return gained

    def drop(self) -> None:
        """Drop held-back entries: they were white space between blocks."""
        self._waiting = []


def without_bytes(entries: Sequence[Logprob]) -> list[Logprob]:
    """Log-probabilities in the format of text events."""
    return [
        Logprob(
            token=each.token,
            logprob=each.logprob,
            top_logprobs=[
                TopLogprob(token=other.token, logprob=other.logprob) for other in each.top_logprobs
            ],
        )
        for each in entries
    ]
