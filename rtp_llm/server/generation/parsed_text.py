# SPDX-License-Identifier: Apache-2.0
"""A choice whose text is parsed: typed deltas, ids of calls, and counts of reasoning tokens."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rtp_llm.server.generation.text_tokens import TextTokens
from rtp_llm.server.types.jobs import Job
from rtp_llm.text.parsers.deltas import (
    OutputDelta,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolCallBegin,
)
from rtp_llm.text.parsers.registry import make_parser, special_texts
from rtp_llm.text.parsers.spec import ParserSpec
from rtp_llm.text.sequence import SequenceText
from rtp_llm.text.tokenizer import Tokenizer

_ALPHANUMERIC = string.ascii_letters + string.digits


class ParsedText:
    """Parses token by token, so that reasoning tokens can be counted.

    `text` includes the special tokens that the parser has to see, see `hidden_tokens`.
    """

    def __init__(self, job: Job, text: SequenceText) -> None:
        self._parser = make_parser(job.parser)
        self._syntax = job.parser.tool_calls
        self._text = text
        self._tokens = None if text.offsets is None else TextTokens(text)
        self._single_call = job.single_call
        self._undecided = 0
        self._reasoning_tokens = 0
        self.called = False
        """Whether a tool call has begun."""
        self.ended = False
        """Whether the single allowed call is complete; the rest is dropped."""

    def feed(self, token_ids: Sequence[int], finished: bool) -> list[OutputDelta]:
        """Parse ids; returns the deltas that are certain. `finished`: these are the last ids."""
        found: list[OutputDelta] = []
        for token in token_ids:
            if self._text.stopped or self.ended:
                break
            self._undecided += 1
            self._feed(self._text.feed((token,)), found)
        if finished and not self._text.stopped:
            self._feed(self._text.feed((), finished=True), found)
        if finished or self._text.stopped:
            self._take(self._parser.finish(), found)
        return found

    def take_reasoning_tokens(self) -> int:
        """The number of reasoning tokens found since the last call."""
        taken, self._reasoning_tokens = self._reasoning_tokens, 0
        return taken

    def _feed(self, piece: str, found: list[OutputDelta]) -> None:
        if self._tokens is not None:
            self._tokens.feed(piece)
        self._take(self._parser.feed(piece), found)

    def _take(self, deltas: Iterable[OutputDelta], found: list[OutputDelta]) -> None:
        """Collect deltas; tokens without a result yet count towards the next delta."""
        for delta in deltas:
            if isinstance(delta, ToolCallBegin):
                if self._single_call and self.called:
                    self.ended = True
                self.called = True
            if self.ended:
                return
            if isinstance(delta, ReasoningDelta):
                self._reasoning_tokens += self._undecided
            if self._tokens is not None:
                if isinstance(delta, TextDelta):
                    made_by = self._tokens.take(delta.text, self._undecided)
                    delta = replace(delta, tokens=made_by)
                else:
                    self._tokens.skip()
            self._undecided = 0
            if isinstance(delta, ToolCallBegin) and not delta.id:
                delta = replace(delta, id=new_call_id(self._syntax))
            _append(found, delta)


def hidden_tokens(spec: ParserSpec, tokenizer: Tokenizer) -> frozenset[int]:
    """Special tokens that are hidden from the text of an answer and that its parser ignores."""
    known = tokenizer.special_token_ids
    seen = {known[text] for text in special_texts(spec) if text in known}
    return tokenizer.special_ids - seen


def _append(found: list[OutputDelta], delta: OutputDelta) -> None:
    """Append a part, merging it with a preceding part of the same kind."""
    last = found[-1] if found else None
    if isinstance(delta, ToolCallBegin):
        found.append(delta)
    elif not delta.text:
        return
    elif isinstance(delta, TextDelta) and isinstance(last, TextDelta):
        tokens = None if last.tokens is None else (*last.tokens, *(delta.tokens or ()))
        found[-1] = TextDelta(last.text + delta.text, tokens)
    elif isinstance(delta, ReasoningDelta) and isinstance(last, ReasoningDelta):
        found[-1] = ReasoningDelta(last.text + delta.text)
    elif isinstance(delta, ToolArguments) and isinstance(last, ToolArguments):
        found[-1] = ToolArguments(delta.index, last.text + delta.text)
    else:
        found.append(delta)


def new_call_id(syntax: str | None) -> str:
    """A new id for a call; Mistral's models only accept ids of nine characters."""
    if syntax is not None and syntax.startswith("mistral"):
        return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))
    return "call_" + secrets.token_hex(12)
