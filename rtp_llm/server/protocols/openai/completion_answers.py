# SPDX-License-Identifier: Apache-2.0
"""/v1/completions: answers and chunks in OpenAI's legacy form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rtp_llm.engine.messages import TokenLogprob
from rtp_llm.server.endpoint.server_sent_events import event
from rtp_llm.server.generation.generation import ChoiceDelta, Usage
from rtp_llm.server.protocols.openai.chunks import (
    ChunkFrame,
    answer_head,
    prompt_logprobs_content,
    usage_content,
)
from rtp_llm.server.protocols.openai.vllm_fields import VLLM_COMPLETION, VLLM_COMPLETION_CHOICE
from rtp_llm.server.types.errors import ApiError
from rtp_llm.server.types.jobs import CompletionResponseOptions, Echo
from rtp_llm.text.tokenizer import Tokenizer

_json = msgspec.json.encode
_PLAIN = b'{"index":%d,"text":%b,"logprobs":null,"finish_reason":null}'


def _finish_of(response_options: CompletionResponseOptions, delta: ChoiceDelta) -> str | None:
    """The finish reason; "length" for a dropped answer, whatever ended its internal token."""
    return "length" if response_options.drop_answer and delta.finish else delta.finish


def _stop_reason_of(
    response_options: CompletionResponseOptions, delta: ChoiceDelta
) -> str | int | None:
    return None if response_options.drop_answer else delta.stop_reason


class LegacyLogprobs:
    """Collects {"tokens", "token_logprobs", "top_logprobs", "text_offset"}."""

    def __init__(self, tokenizer: Tokenizer, as_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def content(self, entries: Sequence[tuple[int, int, TokenLogprob | None]]) -> dict[str, Any]:
        """`entries`: (offset, token id, log-probabilities or None for the first prompt token)."""
        names = [self._name(token) for _, token, _ in entries]
        shown = [None if logprob is None else logprob.logprob for _, _, logprob in entries]
        return {
            "tokens": names,
            "token_logprobs": shown,
            "top_logprobs": [self._top(logprob) for _, _, logprob in entries],
            "text_offset": [offset for offset, _, _ in entries],
        }

    def _top(self, logprob: TokenLogprob | None) -> dict[str, float] | None:
        if logprob is None:
            return None
        own = {self._name(logprob.token_id): logprob.logprob}  # the sampled token first, as in vLLM
        return own | {self._name(token): value for token, value in logprob.top} | own

    def _name(self, token_id: int) -> str:
        """A token's text; an incomplete character is spelt bytes:\\xNN, as OpenAI does."""
        if self._as_ids:
            return f"token_id:{token_id}"
        data = self._tokenizer.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class _ChoiceParts:
    """Turns one choice's deltas into (text, log-probabilities), starting with the echo."""

    def __init__(
        self, response_options: CompletionResponseOptions, tokenizer: Tokenizer, echo: Echo | None
    ) -> None:
        self._response_options = response_options
        options = response_options.options
        self._logprobs = (
            LegacyLogprobs(tokenizer, options.tokens_as_ids) if options.logprobs else None
        )
        self._echo = echo
        self._shift = len(echo.text) if echo else 0
        self._echoed = echo is None

    def take(
        self, delta: ChoiceDelta, prompt: Sequence[TokenLogprob | None] | None
    ) -> tuple[str, dict[str, Any] | None]:
        text = "" if self._response_options.drop_answer else delta.text
        entries: list[tuple[int, int, TokenLogprob | None]] = []
        if not self._echoed and self._echo is not None:
            self._echoed = True
            text = self._echo.text + text
            if self._logprobs:
                entries += _prompt_entries(
                    self._echo, prompt, self._response_options.options.top_logprobs
                )
        if not self._response_options.drop_answer:
            entries += [
                (entry.offset + self._shift, entry.logprob.token_id, entry.logprob)
                for entry in delta.logprobs
            ]
        shown = self._logprobs.content(entries) if self._logprobs and entries else None
        return text, shown


def _prompt_entries(
    echo: Echo, prompt: Sequence[TokenLogprob | None] | None, count: int | None
) -> list[tuple[int, int, TokenLogprob | None]]:
    """`count`: most likely tokens to show; there are more if `prompt_logprobs` requested them."""
    if prompt is None:
        raise RuntimeError("the engine sent no log-probabilities of the prompt")
    shown = [
        each and TokenLogprob(each.token_id, each.logprob, each.top[: count or 0])
        for each in prompt
    ]
    return list(zip(echo.offsets, echo.token_ids, shown, strict=True))


class _Parts:
    """All choices of a request. A prompt's log-probabilities arrive with its first delta."""

    def __init__(self, response_options: CompletionResponseOptions, tokenizer: Tokenizer) -> None:
        numbers = range(response_options.num_choices)
        self._per_prompt = response_options.choices_per_prompt
        self._choices = [
            _ChoiceParts(response_options, tokenizer, response_options.echo_of(i)) for i in numbers
        ]
        self._prompts: dict[int, Sequence[TokenLogprob | None]] = {}

    def take(self, delta: ChoiceDelta) -> tuple[str, dict[str, Any] | None]:
        """The text and the matching log-probabilities that a delta adds."""
        prompt = delta.choice // self._per_prompt
        if delta.prompt_logprobs is not None:
            self._prompts[prompt] = delta.prompt_logprobs
        return self._choices[delta.choice].take(delta, self.prompt_logprobs(delta.choice))

    def prompt_logprobs(self, choice: int) -> Sequence[TokenLogprob | None] | None:
        """The log-probabilities of a choice's prompt, if they were requested and have arrived."""
        return self._prompts.get(choice // self._per_prompt)


class CompletionStream:
    """Chunks of one streamed completion.

    `prompts`: the token ids of each prompt; `usage`: token counts, updated by the generation.
    """

    def __init__(
        self,
        response_options: CompletionResponseOptions,
        tokenizer: Tokenizer,
        prompts: Sequence[Sequence[int]],
        usage: Usage,
    ) -> None:
        self._response_options = response_options
        self._parts = _Parts(response_options, tokenizer)
        self._prompts = prompts
        self._opened: set[int] = set()
        head = answer_head("cmpl", "text_completion", response_options.model)
        live = usage if response_options.options.continuous_usage else None
        self._frame = ChunkFrame(head, response_options.options.include_usage, live)

    def delta(self, delta: ChoiceDelta) -> bytes:
        """The chunk of one delta; empty when there is nothing to show yet."""
        text, logprobs = self._parts.take(delta)
        if self._response_options.options.token_ids:
            return self._with_ids(delta, text, logprobs)
        if logprobs is None and delta.finish is None:
            return self._frame.chunk(_PLAIN % (delta.choice, _json(text))) if text else b""
        return self._chunk(delta, text, logprobs)

    def _with_ids(self, delta: ChoiceDelta, text: str, logprobs: dict[str, Any] | None) -> bytes:
        ids = [] if self._response_options.drop_answer else delta.token_ids
        more = b',"token_ids":' + _json(ids)
        if delta.choice not in self._opened:
            self._opened.add(delta.choice)
            prompt = self._prompts[delta.choice // self._response_options.choices_per_prompt]
            more += b',"prompt_token_ids":' + _json(prompt)
        return self._chunk(delta, text, logprobs, more)

    def _chunk(
        self, delta: ChoiceDelta, text: str, logprobs: dict[str, Any] | None, more: bytes = b""
    ) -> bytes:
        finish = _json(_finish_of(self._response_options, delta))
        if delta.finish is not None:
            finish += b',"stop_reason":' + _json(_stop_reason_of(self._response_options, delta))
        return self._frame.chunk(
            b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b%b}'
            % (delta.choice, _json(text), _json(logprobs), finish, more)
        )

    def end(self, usage: Usage) -> bytes:
        """The usage chunk, if requested, and the end mark."""
        return self._frame.end(usage)

    def fail(self, error: ApiError, usage: Usage) -> bytes:
        """The error event, which ends the stream."""
        return event(error.body())


class CompletionAnswer:
    """Collects the deltas of a completion that is not streamed; see CompletionStream."""

    def __init__(
        self,
        response_options: CompletionResponseOptions,
        tokenizer: Tokenizer,
        prompts: Sequence[Sequence[int]],
    ) -> None:
        self._response_options = response_options
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._parts = _Parts(response_options, tokenizer)
        self._texts: list[list[str]] = [[] for _ in range(response_options.num_choices)]
        self._ids: list[list[int]] = [[] for _ in range(response_options.num_choices)]
        self._logprobs: list[dict[str, list[Any]] | None] = [None] * response_options.num_choices
        self._finish: list[str | None] = [None] * response_options.num_choices
        self._stop_reasons: list[str | int | None] = [None] * response_options.num_choices

    def add(self, delta: ChoiceDelta) -> None:
        """Take a delta."""
        text, logprobs = self._parts.take(delta)
        self._texts[delta.choice].append(text)
        self._finish[delta.choice] = _finish_of(self._response_options, delta)
        self._stop_reasons[delta.choice] = _stop_reason_of(self._response_options, delta)
        if self._response_options.options.token_ids and not self._response_options.drop_answer:
            self._ids[delta.choice] += delta.token_ids
        if logprobs is not None:
            self._append(delta.choice, logprobs)

    def _append(self, choice: int, logprobs: dict[str, list[Any]]) -> None:
        known = self._logprobs[choice]
        if known is None:
            self._logprobs[choice] = logprobs
            return
        for name, values in logprobs.items():
            known[name] += values

    def body(self, usage: Usage) -> bytes:
        """The answer as JSON."""
        content: dict[str, Any] = {
            **answer_head("cmpl", "text_completion", self._response_options.model),
            "choices": [
                self._choice(number) for number in range(self._response_options.num_choices)
            ],
            "usage": usage_content(usage),
        }
        return _json(
            VLLM_COMPLETION | content if self._response_options.options.vllm_fields else content
        )

    def _choice(self, number: int) -> dict[str, Any]:
        options = self._response_options.options
        empty: dict[str, list[Any]] = {
            name: [] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        }
        choice: dict[str, Any] = {
            "index": number,
            "text": "".join(self._texts[number]),
            "logprobs": (self._logprobs[number] or empty) if options.logprobs else None,
            "finish_reason": self._finish[number],
            "stop_reason": self._stop_reasons[number],
        }
        prompt = self._parts.prompt_logprobs(number)
        if options.prompt_logprobs is not None and prompt is not None:
            count = options.prompt_logprobs
            choice["prompt_logprobs"] = prompt_logprobs_content(self._tokenizer, prompt, count)
        if options.token_ids:
            choice["token_ids"] = self._ids[number]
            choice["prompt_token_ids"] = self._prompts[
                number // self._response_options.choices_per_prompt
            ]
        return VLLM_COMPLETION_CHOICE | choice if options.vllm_fields else choice
