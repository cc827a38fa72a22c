# SPDX-License-Identifier: Apache-2.0
"""Turns the engine's token deltas into the text of each choice, for all endpoints."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Literal

from rtp_llm.engine.messages import (
    ERROR_MESSAGES,
    AddRequest,
    EngineDeadError,
    RequestError,
    SequenceDelta,
    TokenLogprob,
)
from rtp_llm.request.params import RequestParams, ScoringParams
from rtp_llm.request.sampling_params import SamplingParams
from rtp_llm.server.generation.parsed_text import ParsedText, hidden_tokens
from rtp_llm.server.http.request_metrics import SequenceTimes
from rtp_llm.server.http.server_metrics import Metrics
from rtp_llm.server.keys.key_ring import check_priority
from rtp_llm.server.keys.quota import Account
from rtp_llm.server.types.engine_interface import EngineInterface
from rtp_llm.server.types.errors import ApiError, from_engine, unavailable
from rtp_llm.server.types.jobs import Job
from rtp_llm.text.parsers.deltas import OutputDelta, TextDelta
from rtp_llm.text.sequence import SequenceText
from rtp_llm.text.tokenizer import Tokenizer

Finish = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class LogprobEntry:
    """One token's log-probabilities, and its offset in the choice's text."""

    offset: int
    logprob: TokenLogprob


@dataclass(slots=True)
class ChoiceDelta:
    """The new output of one choice. `finish` is only set on its last delta.

    If a parser reads the answer, `parts` is set and `text` is empty; `outputs` covers both cases.
    `token_ids` may be ahead of both, as text can be held back. `stop_string` (or pattern) and
    `stop_token_id`: the stop condition of the request that ended the choice.
    """

    choice: int
    text: str
    finish: Finish | None = None
    logprobs: list[LogprobEntry] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] | None = None
    token_ids: list[int] = field(default_factory=list)
    parts: list[OutputDelta] | None = None
    stop_string: str | None = None
    stop_token_id: int | None = None

    @property
    def stop_reason(self) -> str | int | None:
        """The request's stop string or token id that ended the choice, if any."""
        return self.stop_token_id if self.stop_string is None else self.stop_string

    @property
    def outputs(self) -> Sequence[OutputDelta]:
        """The new output, as typed deltas."""
        if self.parts is not None:
            return self.parts
        return (TextDelta(self.text),) if self.text else ()


@dataclass
class Usage:
    """Token counts of one HTTP request; each prompt counts once, whatever n is."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    reasoning_tokens: int | None = None
    """Reasoning tokens of the answers; None if the answers are not parsed for reasoning."""


class _Choice:
    """One sequence: its text so far, and the log-probabilities whose text is still held back."""

    def __init__(self, number: int, job: Job, tokenizer: Tokenizer, arrival: float) -> None:
        params, plain = job.params, job.parser.plain
        hidden = job.hidden.union(params.stop_token_ids)
        if job.skip_special_tokens and not plain:
            hidden |= hidden_tokens(job.parser, tokenizer)
        detokenizer = tokenizer.detokenizer(
            job.prompt_ids if job.continues_prompt else (),
            skip_special_tokens=job.skip_special_tokens and plain,
            hidden=hidden,
        )
        self.number = number
        self.finished = False
        self.times = SequenceTimes(arrival)
        self.text = SequenceText(
            detokenizer,
            params.stop,
            stop_regex=job.stop_regex,
            min_tokens=params.min_tokens,
            include_stop=job.include_stop,
            track_offsets=params.logprobs is not None,
        )
        # An end token of the model has no text, unless the request made it an ordinary token.
        ended_by_model = frozenset() if params.ignore_eos else job.hidden
        self._stop_token_ids = frozenset(params.stop_token_ids) - ended_by_model
        self._pending: list[LogprobEntry] = []
        self.parsed = None if plain else ParsedText(job, self.text)

    def take(self, delta: SequenceDelta) -> ChoiceDelta:
        """Process a delta; returns its visible part."""
        before = self.text.num_tokens
        text, parts, finished = "", None, delta.finish_reason is not None
        if self.parsed is None:
            text = self.text.feed(delta.token_ids, finished)
        else:
            parts = self.parsed.feed(delta.token_ids, finished)
        finish = self._finish(delta)
        self.finished = finish is not None
        entries = [] if self.text.offsets is None else self._release(delta.logprobs, before)
        ids = delta.token_ids
        if self.finished:
            ids = ids[: self.text.num_tokens - before]
        made = ChoiceDelta(self.number, text, finish, entries, delta.prompt_logprobs, ids, parts)
        if finish is not None:
            made.stop_string = self.text.stop_string
            if delta.stop_token_id in self._stop_token_ids:
                made.stop_token_id = delta.stop_token_id
        return made

    def _finish(self, delta: SequenceDelta) -> Finish | None:
        if self.parsed is not None and self.parsed.ended:
            return "tool_calls"
        if not (self.text.stopped or delta.finish_reason == "stop"):
            return "length" if delta.finish_reason == "length" else None
        return "tool_calls" if self.parsed is not None and self.parsed.called else "stop"

    def _release(self, logprobs: list[TokenLogprob] | None, before: int) -> list[LogprobEntry]:
        """Release entries together with their text; entries of a stop string are never released."""
        offsets = self.text.offsets
        if offsets is None:
            return []
        taken = zip(offsets[before:], logprobs or (), strict=False)
        self._pending += [LogprobEntry(offset, entry) for offset, entry in taken]
        if self.finished and not self.text.stopped:
            count = len(self._pending)
        else:
            # Entries are in order. Thousands may be waiting for one: those of tokens without text.
            late = (i for i, e in enumerate(self._pending) if e.offset >= self.text.visible)
            count = next(late, len(self._pending))
        if not count:
            return []
        ready, self._pending = self._pending[:count], self._pending[count:]
        return ready


class Generation:
    """The running prompts of one HTTP request. Iterating yields the choices' deltas.

    Leaving the iteration early (an error, a cancelled task) aborts the remaining sequences.
    Iteration raises ApiError if the engine refuses a prompt or dies.
    """

    def __init__(
        self, engine: EngineInterface, tokenizer: Tokenizer, metrics: Metrics, jobs: Sequence[Job]
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._jobs = jobs
        self._started = time.perf_counter()
        self.first_token_seconds: float | None = None
        self.usage = Usage(prompt_tokens=sum(len(job.prompt_ids) for job in jobs))
        if any(job.parser.reasoning for job in jobs):
            self.usage.reasoning_tokens = 0
        self.num_choices = sum(job.num_choices for job in jobs)
        self.account: Account | None = None
        """The client whose share of the engine the request uses."""
        self.failure: ApiError | None = None
        """Why the engine refused or abandoned the request."""
        self.finish_reasons: list[Finish] = []
        """Finish reasons of the choices, in the order in which they ended."""
        self.times: SequenceTimes | None = None
        """Time of the first token of any sequence."""
        self._reserved: float | None = None
        self._unseen_tokens = 0  # of beams

    def _requested_tokens(self) -> tuple[int, int]:
        """Tokens of prompts and answers: the minimum requested, and the maximum possible."""
        max_model_len = self._engine.ready.max_model_len if self._engine.ready else 0
        least = most = self.usage.prompt_tokens
        for job in self._jobs:
            wanted, possible = job.params.max_tokens, max_model_len - len(job.prompt_ids)
            least += job.params.n * (wanted or 1)
            most += job.params.n * (wanted or possible)
        return least, most

    @property
    def choices_per_prompt(self) -> int:
        """Choices given for each prompt."""
        return self._jobs[0].num_choices

    @property
    def params(self) -> SamplingParams:
        """The sampling parameters of the first prompt."""
        return self._jobs[0].params

    def deltas(self) -> AsyncGenerator[ChoiceDelta, None]:
        """Yield the deltas of all choices as they arrive; the caller must close the iterator.

        Raises ApiError if the account has too few tokens left, or lacks permission.
        """
        if self.account is not None:
            check_priority(self.params.priority, self.account)
            self._reserved = self.account.reserve(*self._requested_tokens())
        return self._run(self._jobs[0]) if len(self._jobs) == 1 else self._merge()

    async def _merge(self) -> AsyncGenerator[ChoiceDelta, None]:
        queue: asyncio.Queue[ChoiceDelta | Exception | None]
        # Unread output stays as tokens in the engine's streams, where it is bounded.
        queue = asyncio.Queue(maxsize=len(self._jobs))

        async def drain(job: Job) -> None:
            try:
                async with aclosing(self._run(job)) as deltas:
                    async for delta in deltas:
                        await queue.put(delta)
                await queue.put(None)
            except Exception as error:
                await queue.put(error)

        tasks = [asyncio.create_task(drain(job)) for job in self._jobs]
        try:
            open_jobs = len(tasks)
            while open_jobs:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    open_jobs -= 1
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._settle()

    def _settle(self) -> None:
        """Charge the account for actual usage: nothing if the engine refused the request."""
        if self.account is None or self._reserved is None:
            return
        reserved, self._reserved = self._reserved, None
        refused = self.failure is not None and self.first_token_seconds is None
        completion_tokens = self.usage.completion_tokens + self._unseen_tokens
        used = (0, 0) if refused else (self.usage.prompt_tokens, completion_tokens)
        self.account.settle(reserved, *used)

    async def _run(self, job: Job) -> AsyncGenerator[ChoiceDelta, None]:
        request_id = self._engine.new_request_id()
        numbers = range(job.first_choice, job.first_choice + job.num_choices)
        choices = [_Choice(number, job, self._tokenizer, self._started) for number in numbers]
        unfinished, cached = len(choices), 0
        try:
            taken = self._engine.generate(_request(request_id, job, self.account))
            self._metrics.prompt_tokens.inc(len(job.prompt_ids))
            self._metrics.requested.begin(len(job.prompt_ids), job.params)
            async with aclosing(taken) as stream:
                async for delta in stream:
                    choice = choices[delta.index]
                    if choice.finished:
                        continue
                    if delta.finish_reason == "abort":
                        break
                    cached = self._count_usage(delta, cached)
                    visible, tokens = self._take(choice, delta, job.prompt_only)
                    if visible.finish is not None:
                        unfinished -= 1
                        if delta.finish_reason is None and unfinished:
                            self._engine.abort(request_id, delta.index)
                    if delta.error is None or tokens:
                        yield visible
                    if delta.error is not None:
                        unfinished -= 1
                        self._metrics.requested.fail()
                        raise RequestError(delta.error, ERROR_MESSAGES[delta.error])
                    if not unfinished:
                        return
        except (RequestError, EngineDeadError) as error:
            self.failure = from_engine(error)
            raise self.failure from error
        finally:
            if unfinished:
                self._metrics.requested.abort(unfinished)
            self._unseen_tokens += _unseen_tokens(job, choices)
            if len(self._jobs) == 1:
                self._settle()
        raise unavailable("The request was ended by the server.", "aborted")

    def _take(
        self, choice: _Choice, delta: SequenceDelta, prompt_only: bool
    ) -> tuple[ChoiceDelta, int]:
        """The visible part of a delta, and the number of its tokens that count."""
        before = choice.text.num_tokens
        visible = choice.take(delta)
        tokens = 0 if prompt_only else choice.text.num_tokens - before
        self._count(choice, tokens, delta.queue_seconds)
        if visible.finish is not None:
            self._metrics.requested.end(choice.times, visible.finish)
            self.finish_reasons.append(visible.finish)
        return visible, tokens

    def _count_usage(self, delta: SequenceDelta, before: int) -> int:
        """Update the usage; returns the cached tokens of the prompt counted so far."""
        self.usage.draft_tokens += delta.draft_tokens
        self.usage.accepted_draft_tokens += delta.accepted_draft_tokens
        more = max(0, delta.cached_tokens - before)
        self.usage.cached_tokens += more
        self._metrics.cached_tokens.inc(more)
        return before + more

    def _count(self, choice: _Choice, tokens: int, queued: float) -> None:
        now = time.perf_counter()
        times = choice.times
        if self.first_token_seconds is None:
            self.first_token_seconds = now - self._started
            self.times = times
            self._metrics.first_token.observe(self.first_token_seconds)
        elif times.last_token and tokens:
            self._metrics.tokens.observe_gap(now - times.last_token, tokens)
        if not times.first_token:
            times.first_token, times.queued = now, queued
        times.last_token = now
        times.tokens += tokens
        self.usage.completion_tokens += tokens
        if self.usage.reasoning_tokens is not None and choice.parsed is not None:
            self.usage.reasoning_tokens += choice.parsed.take_reasoning_tokens()
        self._metrics.tokens.generated += tokens


def _unseen_tokens(job: Job, choices: Sequence[_Choice]) -> int:
    """Tokens of a job's beams that no choice shows: each of them grows with the longest one, and
    with a search that is cut short as far as it may."""
    if job.beam_search is None:
        return 0
    seen = [choice.times.tokens for choice in choices]
    ended = all(choice.finished for choice in choices)
    grown = max(seen) if ended else job.params.max_tokens or 0
    return job.params.n * grown - sum(seen)


def _params(job: Job) -> RequestParams:
    """What the engine is asked for; scores of a prompt alone cost no sampled token."""
    scores = job.params.prompt_logprobs
    if not job.prompt_only or job.params.n > 1 or scores is None:
        return job.params
    return ScoringParams(prompt_logprobs=scores, priority=job.params.priority)


def _request(request_id: int, job: Job, account: Account | None) -> AddRequest:
    key = account.key if account else None
    return AddRequest(
        request_id=request_id,
        prompt_token_ids=job.prompt_ids,
        params=_params(job),
        extra_key=(key.cache_scope if key else "") + job.cache_salt,
        grammar=job.grammar,
        thinking=job.thinking,
        beam_search=job.beam_search,
        tenant=key.name if key else "",
        tenant_weight=key.weight if key else 1.0,
    )
