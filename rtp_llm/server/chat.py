"""/v1/chat/completions: answers and chunks in OpenAI's form."""

from __future__ import annotations

from typing import Any

import msgspec

from rtp_llm.server.chunks import ChunkFrame, answer_head, usage_content
from rtp_llm.server.generation import ChoiceDelta, LogprobEntry, Usage
from rtp_llm.text.tokenizer import Tokenizer

_json = msgspec.json.encode


class ChatLogprobs:
    """Log-probabilities as the chat endpoint shows them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def content(self, entries: list[LogprobEntry]) -> dict[str, Any]:
        """{"content": [{token, logprob, bytes, top_logprobs}], "refusal": null}."""
        return {"content": [self._entry(entry) for entry in entries], "refusal": None}

    def _entry(self, entry: LogprobEntry) -> dict[str, Any]:
        logprob = entry.logprob
        top = [self._token(token, value) for token, value in logprob.top]
        return {**self._token(logprob.token_id, logprob.logprob), "top_logprobs": top}

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        data = self._tokenizer.token_bytes(token_id)
        return {
            "token": data.decode(errors="replace"),
            "logprob": logprob,
            "bytes": list(data),
        }


class ChatStream:
    """Chunks of one streamed chat answer."""

    def __init__(
        self, model: str, tokenizer: Tokenizer, *, logprobs: bool, include_usage: bool
    ) -> None:
        self._logprobs = ChatLogprobs(tokenizer) if logprobs else None
        head = answer_head("chatcmpl", "chat.completion.chunk", model)
        self._frame = ChunkFrame(head, include_usage)
        self._opened: set[int] = set()

    def delta(self, delta: ChoiceDelta) -> bytes:
        """The chunks of one delta: role before the first text, finish_reason after the last."""
        number = delta.choice
        out = b""
        if number not in self._opened:
            self._opened.add(number)
            out += self._chunk(number, b'{"role":"assistant","content":""}')
        if delta.text or delta.logprobs:
            content = b'{"content":' + _json(delta.text) + b"}"
            out += self._chunk(number, content, delta.logprobs)
        if delta.finish is not None:
            out += self._chunk(number, b"{}", finish=_json(delta.finish))
        return out

    def end(self, usage: Usage) -> bytes:
        """The usage chunk, if asked for, and the end mark."""
        return self._frame.end(usage)

    def _chunk(
        self,
        number: int,
        content: bytes,
        logprobs: list[LogprobEntry] | None = None,
        finish: bytes = b"null",
    ) -> bytes:
        shown = b"null"
        if self._logprobs is not None and logprobs:
            shown = _json(self._logprobs.content(logprobs))
        return self._frame.chunk(
            b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b}'
            % (number, content, shown, finish)
        )


class ChatAnswer:
    """Collects the deltas of an answer that is not streamed."""

    def __init__(
        self, model: str, tokenizer: Tokenizer, num_choices: int, *, logprobs: bool
    ) -> None:
        self._model = model
        self._logprobs = ChatLogprobs(tokenizer) if logprobs else None
        self._texts: list[list[str]] = [[] for _ in range(num_choices)]
        self._entries: list[list[LogprobEntry]] = [[] for _ in range(num_choices)]
        self._finish: list[str | None] = [None] * num_choices

    def add(self, delta: ChoiceDelta) -> None:
        """Take a delta."""
        self._texts[delta.choice].append(delta.text)
        self._entries[delta.choice] += delta.logprobs
        self._finish[delta.choice] = delta.finish

    def body(self, usage: Usage) -> bytes:
        """The answer as JSON."""
        return _json(
            {
                **answer_head("chatcmpl", "chat.completion", self._model),
                "choices": [self._choice(number) for number in range(len(self._texts))],
                "usage": usage_content(usage),
            }
        )

    def _choice(self, number: int) -> dict[str, Any]:
        shown = self._logprobs.content(self._entries[number]) if self._logprobs else None
        text = "".join(self._texts[number])
        return {
            "index": number,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": shown,
            "finish_reason": self._finish[number],
        }
