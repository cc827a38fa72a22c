# SPDX-License-Identifier: Apache-2.0
"""Turns the deltas of an answer into lines of JSON or a single object."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from rtp_llm.engine.messages import TokenLogprob
from rtp_llm.server.generation.blocks import Block, Blocks, Closed, Grown, Step
from rtp_llm.server.generation.call_arguments import tool_input
from rtp_llm.server.generation.generation import ChoiceDelta, Generation, LogprobEntry, Usage
from rtp_llm.server.protocols.ollama.answers import (
    OllamaAnswer,
    OllamaAnswerMessage,
    OllamaCall,
    OllamaCalledFunction,
    OllamaChatAnswer,
    OllamaGenerateAnswer,
    OllamaLogprob,
    OllamaTopLogprob,
)
from rtp_llm.server.protocols.ollama.response_options import OllamaResponseOptions
from rtp_llm.server.protocols.ollama.timestamps import now
from rtp_llm.server.types.errors import ApiError
from rtp_llm.server.types.ollama_error import ollama_error
from rtp_llm.text.tokenizer import Tokenizer

MEDIA_TYPE = b"application/x-ndjson"
_NANOSECONDS = 1_000_000_000
_encode = msgspec.json.encode


class OllamaWriter:
    """Implements StreamWriter and AnswerWriter. `began`: time.perf_counter() at arrival."""

    def __init__(
        self,
        response_options: OllamaResponseOptions,
        generation: Generation,
        tokenizer: Tokenizer,
        began: float,
    ) -> None:
        self._response_options, self._generation, self._tokenizer = (
            response_options,
            generation,
            tokenizer,
        )
        self._began = began
        self._blocks = Blocks()
        self._cut = False
        self._content: list[str] = []
        self._thinking: list[str] = []
        self._calls: list[OllamaCall] = []
        self._logprobs: list[OllamaLogprob] = []
        self._num_calls = 0

    # -- streamed ------------------------------------------------------------------------------

    def delta(self, delta: ChoiceDelta) -> bytes:
        """The lines of one delta."""
        self.add(delta)
        return self._lines()

    def end(self, usage: Usage) -> bytes:
        """The remaining lines, and the line with the statistics that closes the stream."""
        self._finish()
        last = self._answer()
        self._add_figures(last, usage)
        return self._lines() + _encode(last) + b"\n"

    def fail(self, error: ApiError, usage: Usage) -> bytes:
        """The line that closes a failed stream."""
        return ollama_error(error) + b"\n"

    # -- whole ---------------------------------------------------------------------------------

    def add(self, delta: ChoiceDelta) -> None:
        """Add a delta."""
        self._cut |= delta.finish == "length"
        for output in delta.outputs:
            for step in self._blocks.take(output):
                self._take(step)
        if self._response_options.logprobs:
            self._logprobs += map(self._logprob, delta.logprobs)

    def body(self, usage: Usage) -> bytes:
        """The complete answer."""
        self._finish()
        answer = self._take_answer()
        self._add_figures(answer, usage)
        return _encode(answer)

    # -- parts ---------------------------------------------------------------------------------

    def _finish(self) -> None:
        for step in self._blocks.finish(self._cut):
            self._take(step)

    def _take(self, step: Step) -> None:
        kind = step.block.kind
        if isinstance(step, Grown) and kind == "text":
            self._content.append(step.text)
        elif (
            isinstance(step, Grown) and kind == "reasoning" and self._response_options.show_thinking
        ):
            self._thinking.append(step.text)
        elif isinstance(step, Closed) and kind == "call":
            self._calls.append(self._call(step.block))

    def _call(self, block: Block) -> OllamaCall:
        index, self._num_calls = self._num_calls, self._num_calls + 1
        function = OllamaCalledFunction(
            index=index, name=block.name, arguments=tool_input(block.text)
        )
        return OllamaCall(id=block.id, function=function)

    def _lines(self) -> bytes:
        """The output since the last line, as a line; empty if there is none."""
        if not (self._content or self._thinking or self._calls or self._logprobs):
            return b""
        return _encode(self._take_answer()) + b"\n"

    def _take_answer(self) -> OllamaAnswer:
        logprobs = self._logprobs if self._response_options.logprobs and self._logprobs else UNSET
        answer = self._answer(
            "".join(self._content), "".join(self._thinking) or UNSET, self._calls or UNSET
        )
        answer.logprobs = logprobs
        self._content, self._thinking, self._calls, self._logprobs = [], [], [], []
        return answer

    def _answer(
        self,
        content: str = "",
        thinking: str | UnsetType = UNSET,
        calls: list[OllamaCall] | UnsetType = UNSET,
    ) -> OllamaAnswer:
        model, created = self._response_options.model, now()
        if not self._response_options.chat:
            return OllamaGenerateAnswer(
                model=model, created_at=created, response=content, thinking=thinking
            )
        message = OllamaAnswerMessage(content=content, thinking=thinking, tool_calls=calls)
        return OllamaChatAnswer(model=model, created_at=created, message=message)

    def _add_figures(self, answer: OllamaAnswer, usage: Usage) -> None:
        total = time.perf_counter() - self._began
        first = self._generation.first_token_seconds
        prompt = total if first is None else min(first, total)
        answer.done = True
        answer.done_reason = "length" if self._cut else "stop"
        answer.total_duration = int(total * _NANOSECONDS)
        answer.load_duration = 0
        answer.prompt_eval_count = usage.prompt_tokens
        answer.prompt_eval_duration = int(prompt * _NANOSECONDS)
        answer.eval_count = usage.completion_tokens
        # At least 1, as clients divide by it.
        answer.eval_duration = max(1, int((total - prompt) * _NANOSECONDS))

    def _logprob(self, entry: LogprobEntry) -> OllamaLogprob:
        logprob: TokenLogprob = entry.logprob
        top = [OllamaTopLogprob(**self._token(*each)) for each in logprob.top]
        own = self._token(logprob.token_id, logprob.logprob)
        return OllamaLogprob(**own, top_logprobs=top if top else UNSET)

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        data = self._tokenizer.token_bytes(token_id)
        text = data.decode(errors="replace")
        return {"token": text, "logprob": logprob, "bytes": list(data)}
