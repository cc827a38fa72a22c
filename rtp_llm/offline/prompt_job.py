# SPDX-License-Identifier: Apache-2.0
"""One prompt of offline generation, on its way from token ids to the output."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from rtp_llm.engine.deltas import decode_prompt_logprobs, merge_deltas
from rtp_llm.engine.messages import (
    ERROR_MESSAGES,
    AddRequest,
    PromptLogprobs,
    RequestError,
    SequenceDelta,
)
from rtp_llm.offline.outputs import (
    CompletionOutput,
    PoolingOutput,
    PoolingRequestOutput,
    RequestMetrics,
    RequestOutput,
)
from rtp_llm.offline.prompts import PlainPrompt
from rtp_llm.request.beam_search import BeamSearch
from rtp_llm.request.constraints import Grammar, Thinking
from rtp_llm.request.params import PoolingParams
from rtp_llm.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from rtp_llm.text.sequence import SequenceText
    from rtp_llm.text.tokenizer import Tokenizer


class EncodedPrompt(msgspec.Struct, frozen=True):
    """A prompt and its token ids. ``continues``: the output continues its text.

    ``thinking`` may precede an answer that has to obey ``grammar``. ``second_text``: where the
    second of two texts begins; 0: it is one.
    """

    prompt: PlainPrompt
    token_ids: list[int]
    continues: bool = True
    thinking: Thinking | None = None
    grammar: Grammar | None = None
    second_text: int = 0
    beam_search: BeamSearch | None = None


class PromptJob:
    """One prompt on its way; turns deltas into the output."""

    def __init__(
        self, tokenizer: Tokenizer, request_id: int, prompt: EncodedPrompt, params: SamplingParams
    ) -> None:
        ids = prompt.token_ids
        self.request = AddRequest(
            request_id=request_id,
            prompt_token_ids=ids,
            params=params,
            extra_key=prompt.prompt.cache_salt,
            grammar=prompt.grammar,
            thinking=prompt.thinking if prompt.grammar is not None else None,
            beam_search=prompt.beam_search,
        )
        self.output = RequestOutput(
            prompt=prompt.prompt.text,
            prompt_token_ids=ids,
            outputs=[CompletionOutput(index) for index in range(params.n)],
            request_id=str(request_id),
            metrics=RequestMetrics(arrival_time=time.time(), queued_ts=time.monotonic()),
        )
        if params.prompt_logprobs is not None:
            self.output.prompt_logprobs = [None] * len(ids)
        self.open = set(range(params.n))
        # Without stop strings the text can be decoded at the end, without delaying steps.
        self._waiting: dict[int, SequenceDelta] | None = None if params.stop else {}
        hidden = {*tokenizer.eos_token_ids, *params.stop_token_ids}
        context = ids if prompt.continues else ()
        self._texts = [_sequence_text(tokenizer, params, context, hidden) for _ in range(params.n)]

    def take(self, delta: SequenceDelta) -> bool:
        """Add a delta; returns True if a stop string ends the sequence, so that the engine must be
        notified."""
        if delta.index not in self.open:
            return False
        output = self.output.outputs[delta.index]
        if not self.output.metrics.first_token_ts or delta.finish_reason is not None:
            self._keep_time(delta)
        if self._waiting is not None:
            waiting = self._waiting.get(delta.index)
            delta = merge_deltas(waiting, delta) if waiting else delta
            if delta.finish_reason is None:
                self._waiting[delta.index] = delta
                return False
        text = self._texts[delta.index]
        self.output.cached_tokens = delta.cached_tokens
        output.text += text.feed(delta.token_ids, delta.finish_reason is not None)
        taken = text.num_tokens - len(output.token_ids)
        output.token_ids += delta.token_ids[:taken]
        if delta.logprobs is not None:
            output.logprobs = (output.logprobs or []) + delta.logprobs[:taken]
        output.finish_reason = "stop" if text.stopped else delta.finish_reason
        output.stop_reason = text.stop_string if text.stopped else delta.stop_token_id
        if output.finish_reason == "error":
            output.stop_reason = delta.error
        if output.finish_reason is not None:
            self.open.discard(delta.index)
            self.output.metrics.num_generation_tokens += len(output.token_ids)
        return text.stopped and delta.finish_reason is None

    def _keep_time(self, delta: SequenceDelta) -> None:
        """Record the time of the request's first token, or of the last one of a sequence."""
        metrics, now = self.output.metrics, time.monotonic()
        if not metrics.first_token_ts:
            metrics.scheduled_ts = metrics.queued_ts + delta.queue_seconds
            metrics.first_token_ts = now
        metrics.last_token_ts = now

    def take_prompt_logprobs(self, message: PromptLogprobs) -> None:
        """Put a part of the prompt's log-probabilities into its place."""
        entries = self.output.prompt_logprobs
        if entries is not None:
            part = decode_prompt_logprobs(message, self.request.sampling.prompt_logprobs or 0)
            entries[message.start : message.start + len(part)] = part


class PoolingJob:
    """One prompt on its way to what is pooled of it; with the interface of a PromptJob."""

    def __init__(
        self,
        request_id: int,
        prompt: EncodedPrompt,
        params: PoolingParams,
        *,
        per_token: bool = False,
    ) -> None:
        """``per_token``: scores and labels are those of tokens."""
        ids = prompt.token_ids
        self.request = AddRequest(
            request_id=request_id,
            prompt_token_ids=ids,
            params=params,
            extra_key=prompt.prompt.cache_salt,
            second_text=prompt.second_text,
        )
        has_rows = per_token if params.task != "embed" else False
        self._rows = len(ids) if has_rows or params.pooling_type == "all" else None
        empty = PoolingOutput(np.empty(0, np.float32))
        self.output = PoolingRequestOutput(prompt.prompt.text, ids, empty, str(request_id))
        self.open = {0}

    def take(self, delta: SequenceDelta) -> bool:
        """Take the only delta; the engine needs no notice."""
        if delta.error is not None:
            raise RequestError(delta.error, ERROR_MESSAGES[delta.error])
        if delta.pooled is not None:
            numbers = np.frombuffer(delta.pooled, np.float32)
            shaped = numbers if self._rows is None else numbers.reshape(self._rows, -1)
            self.output.outputs.data = shaped
        self.output.num_cached_tokens = delta.cached_tokens
        self.output.finished = True
        self.open.clear()
        return False

    def take_prompt_logprobs(self, message: PromptLogprobs) -> None:
        """Never called: none are requested."""


def _sequence_text(
    tokenizer: Tokenizer, params: SamplingParams, context: Sequence[int], hidden: set[int]
) -> SequenceText:
    from rtp_llm.text.sequence import SequenceText

    detokenizer = tokenizer.detokenizer(
        context, skip_special_tokens=params.skip_special_tokens, hidden=hidden
    )
    return SequenceText(
        detokenizer,
        params.stop,
        min_tokens=params.min_tokens,
        include_stop=params.include_stop_str_in_output,
    )
