# SPDX-License-Identifier: Apache-2.0
"""Turns the deltas of an answer into server-sent events or a single object."""

from __future__ import annotations

import time
from typing import Any, Literal

import msgspec

from rtp_llm.server.endpoint.server_sent_events import event
from rtp_llm.server.generation.generation import ChoiceDelta, Generation, Usage
from rtp_llm.server.protocols.llama_cpp.answers import InfillAnswer, InfillChunk, InfillTimings
from rtp_llm.server.protocols.llama_cpp.response_options import InfillResponseOptions
from rtp_llm.server.types.errors import ApiError

_encode = msgspec.json.encode


class InfillWriter:
    """Implements StreamWriter and AnswerWriter. `began`: time.perf_counter() at arrival."""

    def __init__(
        self, response_options: InfillResponseOptions, generation: Generation, began: float
    ) -> None:
        self._response_options, self._generation, self._began = response_options, generation, began
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._has_new_line = False
        self._stop_type: Literal["eos", "word", "limit"] = "limit"
        self._stopping_word = ""

    # -- streamed ------------------------------------------------------------------------------

    def delta(self, delta: ChoiceDelta) -> bytes:
        """The event of one delta."""
        self.add(delta)
        text, tokens = self._take()
        if not text and not tokens:
            return b""
        usage = self._generation.usage
        chunk = InfillChunk(
            content=text,
            tokens=tokens,
            tokens_predicted=usage.completion_tokens,
            tokens_evaluated=usage.prompt_tokens,
        )
        return event(_encode(chunk))

    def end(self, usage: Usage) -> bytes:
        """The event that closes the stream, including the statistics."""
        return event(self._whole("", [], usage))

    def fail(self, error: ApiError, usage: Usage) -> bytes:
        """The event that closes a failed stream."""
        return event(error.body())

    # -- whole ---------------------------------------------------------------------------------

    def add(self, delta: ChoiceDelta) -> None:
        """Add a delta."""
        if not self._response_options.drop_answer:
            self._text.append(delta.text)
            self._tokens += delta.token_ids
            self._has_new_line |= "\n" in delta.text
        if delta.finish != "stop" or delta.stop_string == self._response_options.indent_pattern:
            return
        self._stop_type = "eos" if delta.stop_string is None else "word"
        self._stopping_word = delta.stop_string or ""

    def body(self, usage: Usage) -> bytes:
        """The complete answer."""
        text, tokens = self._take()
        return self._whole(text, tokens if self._response_options.show_tokens else [], usage)

    # -- parts ---------------------------------------------------------------------------------

    def _take(self) -> tuple[str, list[int]]:
        taken = "".join(self._text), self._tokens
        self._text, self._tokens = [], []
        return taken

    def _whole(self, text: str, tokens: list[int], usage: Usage) -> bytes:
        answer = InfillAnswer(
            content=text,
            tokens=tokens,
            model=self._response_options.model,
            tokens_predicted=usage.completion_tokens,
            tokens_evaluated=usage.prompt_tokens,
            has_new_line=self._has_new_line,
            truncated=self._response_options.truncated,
            stop_type=self._stop_type,
            stopping_word=self._stopping_word,
            tokens_cached=usage.prompt_tokens + usage.completion_tokens,
            timings=self._timings(usage),
        )
        if not self._response_options.fields:
            return _encode(answer)
        return _encode(_picked(msgspec.to_builtins(answer), self._response_options.fields))

    def _timings(self, usage: Usage) -> InfillTimings:
        total = time.perf_counter() - self._began
        first = self._generation.first_token_seconds
        prompt = total if first is None else min(first, total)
        computed, made = usage.prompt_tokens - usage.cached_tokens, usage.completion_tokens
        return InfillTimings(
            cache_n=usage.cached_tokens,
            **_speed("prompt", computed, prompt),
            **_speed("predicted", made, total - prompt),
        )


def _speed(name: str, tokens: int, seconds: float) -> dict[str, Any]:
    return {
        f"{name}_n": tokens,
        f"{name}_ms": 1000 * seconds,
        f"{name}_per_token_ms": 1000 * seconds / max(tokens, 1),
        f"{name}_per_second": tokens / max(seconds, 1e-6),
    }


def _picked(answer: dict[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    """The requested fields that exist, by path, as llama.cpp returns them."""
    picked: dict[str, Any] = {}
    for path in fields:
        value: Any = answer
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            picked[path] = value
    return picked
