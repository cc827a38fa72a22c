# SPDX-License-Identifier: Apache-2.0
"""Common parts of the streamed and complete answers of both endpoints."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from rtp_llm.engine.messages import TokenLogprob
from rtp_llm.server.generation.generation import Usage
from rtp_llm.text.tokenizer import Tokenizer

_json = msgspec.json.encode
DONE = b"data: [DONE]\n\n"


def answer_head(prefix: str, kind: str, model: str) -> dict[str, Any]:
    """id, object, created and model of a new answer."""
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
    }


def usage_content(usage: Usage) -> dict[str, Any]:
    """The usage object."""
    content: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    details: dict[str, int] = {}
    if usage.reasoning_tokens is not None:
        details["reasoning_tokens"] = usage.reasoning_tokens
    if usage.draft_tokens:
        accepted = usage.accepted_draft_tokens
        details["accepted_prediction_tokens"] = accepted
        details["rejected_prediction_tokens"] = usage.draft_tokens - accepted
    if details:
        content["completion_tokens_details"] = details
    return content


def prompt_logprobs_content(
    tokenizer: Tokenizer, entries: Sequence[TokenLogprob | None], count: int
) -> list[dict[str, Any] | None]:
    """A prompt's log-probabilities in vLLM's format: by token id, the prompt's own token first.

    `count`: number of most likely tokens to show.
    """
    return [None if each is None else _prompt_token(tokenizer, each, count) for each in entries]


def _prompt_token(tokenizer: Tokenizer, entry: TokenLogprob, count: int) -> dict[str, Any]:
    top = {token: (value, rank) for rank, (token, value) in enumerate(entry.top[:count], 1)}
    own = {entry.token_id: top.get(entry.token_id, (entry.logprob, entry.rank))}
    return {
        str(token): {
            "logprob": value,
            "rank": rank,
            "decoded_token": tokenizer.token_text(token),
        }
        for token, (value, rank) in (own | top).items()
    }


class ChunkFrame:
    """Writes the chunks of one stream; their common parts are encoded only once.

    `live`: the current usage, to include in every chunk.
    """

    def __init__(
        self, head: dict[str, Any], include_usage: bool, live: Usage | None = None
    ) -> None:
        self._head = b"data: " + _json(head)[:-1] + b',"choices":['
        self._tail = b"]" + (b',"usage":null' if include_usage else b"") + b"}\n\n"
        self._include_usage = include_usage
        self._live = live

    def chunk(self, choice: bytes, more: bytes = b"") -> bytes:
        """The event with one choice, given as JSON; `more`: additional fields, each as `,...`."""
        if self._live is None and not more:
            return self._head + choice + self._tail
        if self._live is not None:
            more += b',"usage":' + _json(usage_content(self._live))
        elif self._include_usage:
            more += b',"usage":null'
        return self._head + choice + b"]" + more + b"}\n\n"

    def end(self, usage: Usage) -> bytes:
        """The usage chunk, if requested, and the end mark."""
        if not self._include_usage:
            return DONE
        return self._head + b'],"usage":' + _json(usage_content(usage)) + b"}\n\n" + DONE
