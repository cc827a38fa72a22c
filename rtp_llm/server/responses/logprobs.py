# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of the messages of a response."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from rtp_llm.server.openai.chat import ChatLogprobs
from rtp_llm.server.openai.generation import LogprobEntry
from rtp_llm.server.prepare.jobs import AnswerOptions
from rtp_llm.server.responses.events import Logprob, TopLogprob
from rtp_llm.text.parsers.deltas import TextDelta
from rtp_llm.text.tokenizer import Tokenizer


class TextLogprobs:
    """Those of one answer's tokens, as its texts come. Only tokens of the texts are shown."""

    def __init__(self, tokenizer: Tokenizer, options: AnswerOptions) -> None:
        self._shown = ChatLogprobs(tokenizer, options)
        self._entries: list[LogprobEntry] = []
        self._length = 0  # of the text of an answer that no parser reads
        self._waiting: list[Logprob] = []
        self.message: list[Logprob] = []
        """Those of the message that is open."""

    def add(self, entries: Sequence[LogprobEntry]) -> None:
        """Those that come with the next deltas."""
        self._entries += entries

    def take(self, delta: TextDelta) -> None:
        """The answer has more text; it may wait for more before it goes to a message."""
        if delta.tokens is not None:
            entries = [self._entries[i] for i in delta.tokens if i < len(self._entries)]
        else:  # no parser reads it: all tokens are the text's, but for one that ends it
            self._length += len(delta.text)
            entries = [each for each in self._entries if each.offset < self._length]
            self._entries = self._entries[len(entries) :]
        content = self._shown.content(entries)["content"]
        self._waiting += msgspec.convert(content, list[Logprob])

    def begin(self, *, is_first: bool) -> None:
        """A message begins; unless it is the first block, without its first line breaks."""
        self.message = []
        if is_first:
            return
        blank = list(itertools.takewhile(str.isspace, (each.token for each in self._waiting)))
        while blank and "\n" not in blank[-1]:
            blank.pop()
        self._waiting = self._waiting[len(blank) :]

    def grow(self, text: str) -> list[Logprob]:
        """Those of a text that the message gained."""
        end = len(self._waiting)
        if not text[-1:].isspace():  # white space at its end waits
            while end and self._waiting[end - 1].token.isspace():
                end -= 1
        gained, self._waiting = self._waiting[:end], self._waiting[end:]
        self.message += gained
        return gained

    def drop(self) -> None:
        """What waited was white space between blocks."""
        self._waiting = []


def without_bytes(entries: Sequence[Logprob]) -> list[Logprob]:
    """As events of texts show them."""
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
