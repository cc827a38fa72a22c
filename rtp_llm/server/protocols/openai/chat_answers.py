# SPDX-License-Identifier: Apache-2.0
"""/v1/chat/completions: answers and chunks in OpenAI's form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rtp_llm.engine.messages import TokenLogprob
from rtp_llm.server.endpoint.server_sent_events import event
from rtp_llm.server.generation.chat_logprobs import ChatLogprobs
from rtp_llm.server.generation.generation import ChoiceDelta, LogprobEntry, Usage
from rtp_llm.server.protocols.openai.chunks import (
    ChunkFrame,
    answer_head,
    prompt_logprobs_content,
    usage_content,
)
from rtp_llm.server.protocols.openai.message_parts import MessageParts
from rtp_llm.server.protocols.openai.vllm_fields import VLLM_CHAT, VLLM_CHAT_CHOICE, VLLM_MESSAGE
from rtp_llm.server.types.errors import ApiError
from rtp_llm.server.types.jobs import ChatResponseOptions
from rtp_llm.text.parsers.deltas import OutputDelta, TextDelta
from rtp_llm.text.tokenizer import Tokenizer

_json = msgspec.json.encode
_PLAIN = b'{"index":%d,"delta":{"content":%b},"logprobs":null,"finish_reason":null}'


class ChatStream:
    """Chunks of one streamed chat answer. `usage`: token counts, updated by the generation."""

    def __init__(
        self,
        response_options: ChatResponseOptions,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        usage: Usage,
    ) -> None:
        options = response_options.options
        self._logprobs = ChatLogprobs(tokenizer, options) if options.logprobs else None
        head = answer_head("chatcmpl", "chat.completion.chunk", response_options.model)
        live = usage if options.continuous_usage else None
        self._frame = ChunkFrame(head, options.include_usage, live)
        self._opened: set[int] = set()
        self._echo = response_options.echo_of(0)
        self._show_ids = options.token_ids
        self._prompt_ids = prompt_ids
        self._parts = MessageParts(response_options)

    def delta(self, delta: ChoiceDelta) -> bytes:
        """The chunks of one delta: role before the first text, finish_reason after the last."""
        number = delta.choice
        out = b""
        if number not in self._opened:
            out += self._open(number)
        if delta.parts is not None:
            out += self._typed(delta, delta.parts)
        elif not delta.logprobs and not self._show_ids:
            if delta.text:  # the most common case
                out += self._frame.chunk(_PLAIN % (number, _json(delta.text)))
        elif delta.text or delta.logprobs or delta.token_ids:
            content = b'{"content":' + _json(delta.text) + b"}"
            ids = delta.token_ids if self._show_ids else None
            out += self._chunk(number, content, delta.logprobs, ids=ids)
        if delta.finish is not None:
            finish = _json(self._parts.finish(delta.finish))
            finish += b',"stop_reason":' + _json(delta.stop_reason)
            out += self._chunk(number, b"{}", finish=finish)
        return out

    def _typed(self, delta: ChoiceDelta, parts: Sequence[OutputDelta]) -> bytes:
        """One chunk per part; the first one carries log-probabilities and token ids."""
        shown = [_json(each) for each in map(self._parts.piece, parts) if each]
        entries = delta.logprobs
        ids = delta.token_ids if self._show_ids else None
        if not shown and (entries or ids):
            shown = [b"{}"]
        out = b""
        for content in shown:
            out += self._chunk(delta.choice, content, entries, ids=ids)
            entries, ids = [], ([] if self._show_ids else None)
        return out

    def _open(self, number: int) -> bytes:
        """The role and the echo of a choice; the first also has the prompt's ids if requested."""
        more = b""
        if self._show_ids and not self._opened:
            more = b',"prompt_token_ids":' + _json(self._prompt_ids)
        self._opened.add(number)
        out = self._chunk(number, b'{"role":"assistant","content":""}', more=more)
        if self._echo:
            out += self._chunk(number, b'{"content":' + _json(self._echo) + b"}")
        return out

    def end(self, usage: Usage) -> bytes:
        """The usage chunk, if requested, and the end mark."""
        return self._frame.end(usage)

    def fail(self, error: ApiError, usage: Usage) -> bytes:
        """The error event, which ends the stream."""
        return event(error.body())

    def _chunk(
        self,
        number: int,
        content: bytes,
        logprobs: list[LogprobEntry] | None = None,
        finish: bytes = b"null",
        *,
        ids: list[int] | None = None,
        more: bytes = b"",
    ) -> bytes:
        shown = b"null"
        if self._logprobs is not None and logprobs:
            shown = _json(self._logprobs.content(logprobs))
        tokens = b"" if ids is None else b',"token_ids":' + _json(ids)
        return self._frame.chunk(
            b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b%b}'
            % (number, content, shown, finish, tokens),
            more,
        )


class ChatAnswer:
    """Collects the deltas of an answer that is not streamed."""

    def __init__(
        self,
        response_options: ChatResponseOptions,
        tokenizer: Tokenizer,
        prompts: Sequence[Sequence[int]],
    ) -> None:
        """`prompts`: the token ids of each prompt."""
        options, num_choices = response_options.options, response_options.num_choices
        self._response_options = response_options
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._prompt_logprobs: dict[int, list[TokenLogprob | None]] = {}
        self._logprobs = ChatLogprobs(tokenizer, options) if options.logprobs else None
        self._texts = [[response_options.echo_of(number)] for number in range(num_choices)]
        self._parts: list[list[OutputDelta]] = [[] for _ in range(num_choices)]
        self._shown = MessageParts(response_options)
        self._typed = False
        self._ids: list[list[int]] = [[] for _ in range(num_choices)]
        self._entries: list[list[LogprobEntry]] = [[] for _ in range(num_choices)]
        self._finish: list[str | None] = [None] * num_choices
        self._stop_reasons: list[str | int | None] = [None] * num_choices

    def add(self, delta: ChoiceDelta) -> None:
        """Take a delta."""
        self._texts[delta.choice].append(delta.text)
        if delta.parts is not None:
            self._typed = True
            self._parts[delta.choice] += delta.parts
        self._entries[delta.choice] += delta.logprobs
        self._finish[delta.choice] = delta.finish
        self._stop_reasons[delta.choice] = delta.stop_reason
        if self._response_options.options.token_ids:
            self._ids[delta.choice] += delta.token_ids
        if delta.prompt_logprobs is not None:
            self._prompt_logprobs[delta.choice if self._response_options.batch else 0] = (
                delta.prompt_logprobs
            )

    def body(self, usage: Usage) -> bytes:
        """The answer as JSON."""
        content = {
            **answer_head("chatcmpl", "chat.completion", self._response_options.model),
            "choices": [self._choice(number) for number in range(len(self._texts))],
            "usage": usage_content(usage),
        }
        if not self._response_options.batch:
            content |= self._of_prompt(0)
        if self._response_options.options.vllm_fields:
            content = VLLM_CHAT | content
        return _json(content)

    def _of_prompt(self, number: int) -> dict[str, Any]:
        """Requested data about a prompt: log-probabilities, token ids."""
        content: dict[str, Any] = {}
        wanted, known = (
            self._response_options.options.prompt_logprobs,
            self._prompt_logprobs.get(number),
        )
        if wanted is not None and known is not None:
            content["prompt_logprobs"] = prompt_logprobs_content(self._tokenizer, known, wanted)
        if self._response_options.options.token_ids:
            content["prompt_token_ids"] = self._prompts[number]
        return content

    def _choice(self, number: int) -> dict[str, Any]:
        shown = self._logprobs.content(self._entries[number]) if self._logprobs else None
        message: dict[str, Any] = {"content": "".join(self._texts[number])}
        if self._typed:
            parts = [TextDelta(self._response_options.echo_of(number)), *self._parts[number]]
            message = self._shown.message(parts)
        choice: dict[str, Any] = {
            "index": number,
            "message": {"role": "assistant", **message, "refusal": None},
            "logprobs": shown,
            "finish_reason": self._shown.finish(self._finish[number]),
            "stop_reason": self._stop_reasons[number],
        }
        if self._response_options.options.token_ids:
            choice["token_ids"] = self._ids[number]
        if self._response_options.batch:
            choice |= self._of_prompt(number)
        if self._response_options.options.vllm_fields:
            choice["message"] = VLLM_MESSAGE | choice["message"]
            choice = VLLM_CHAT_CHOICE | choice
        return choice
