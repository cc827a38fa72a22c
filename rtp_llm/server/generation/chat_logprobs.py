# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of tokens, as chats and responses show them."""

from __future__ import annotations

from typing import Any

from rtp_llm.server.generation.generation import LogprobEntry
from rtp_llm.server.types.jobs import AnswerOptions
from rtp_llm.text.tokenizer import Tokenizer


class ChatLogprobs:
    """Log-probabilities in the format of the chat endpoint."""

    def __init__(self, tokenizer: Tokenizer, options: AnswerOptions) -> None:
        self._tokenizer = tokenizer
        self._as_ids = options.tokens_as_ids
        self._named = options.named_logprobs

    def content(self, entries: list[LogprobEntry]) -> dict[str, Any]:
        """{"content": [{token, logprob, bytes, top_logprobs}], "refusal": null}."""
        return {"content": [self._entry(entry) for entry in entries], "refusal": None}

    def _entry(self, entry: LogprobEntry) -> dict[str, Any]:
        logprob = entry.logprob
        shown = logprob.top
        if self._named:  # the sampled token comes first, as in vLLM
            own = logprob.token_id
            shown = [(own, logprob.logprob), *(pair for pair in shown if pair[0] != own)]
        top = [self._token(token, value) for token, value in shown]
        return {**self._token(logprob.token_id, logprob.logprob), "top_logprobs": top}

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        data = self._tokenizer.token_bytes(token_id)
        return {
            "token": f"token_id:{token_id}" if self._as_ids else data.decode(errors="replace"),
            "logprob": logprob,
            "bytes": list(data),
        }
