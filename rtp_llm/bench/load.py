# SPDX-License-Identifier: Apache-2.0
"""Sends requests on schedule and records when their answers arrive."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rtp_llm.bench.samples import Sample
from rtp_llm.client.openai import CHAT, OpenAIClient, ServerError
from rtp_llm.terminal.terminal_bar import TerminalBar

_DRAW_SECONDS = 0.1


@dataclass
class Outcome:
    """The result of one request. Times are seconds; ``start`` is a time.perf_counter() value."""

    prompt_tokens: int
    start: float = 0.0
    ttft: float = 0.0
    """From ``start`` to the first text, reasoning or tool call."""
    itls: list[float] = field(default_factory=list)
    """From each such event to the next one."""
    latency: float = 0.0
    """From ``start`` to the last event of the answer."""
    queued: float = 0.0
    """How long it waited for --max-concurrency before ``start``."""
    output_tokens: int = 0
    text: str = ""
    error: str = ""
    is_counted: bool = False
    """As reported by the server; otherwise the number of events."""


@dataclass(frozen=True)
class Load:
    """Where requests are sent, and their common fields."""

    client: OpenAIClient
    path: str
    body: Mapping[str, Any]
    """Additional fields of every request."""

    async def send(self, sample: Sample, outcome: Outcome) -> None:
        """Send a request and record its answer, or its error, in ``outcome``."""
        outcome.start = time.perf_counter()
        try:
            await self._read(self._request(sample), outcome)
        except (ServerError, OSError) as error:
            outcome.error = str(error) or type(error).__name__

    def _request(self, sample: Sample) -> dict[str, Any]:
        body: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
        body["max_tokens"] = sample.output_tokens
        if self.path.endswith(CHAT):
            body["messages"] = [{"role": "user", "content": sample.prompt}]
        else:
            body["prompt"] = sample.prompt
        return {**body, **self.body}

    async def _read(self, request: Mapping[str, Any], outcome: Outcome) -> None:
        last, finished = 0.0, False
        async with contextlib.aclosing(self.client.stream(self.path, request)) as deltas:
            async for delta in deltas:
                now = time.perf_counter()
                if delta.is_output:
                    if last:
                        outcome.itls.append(now - last)
                    else:
                        outcome.ttft = now - outcome.start
                    last = now
                    outcome.text += delta.text
                if delta.is_output or delta.finish_reason:
                    outcome.latency = now - outcome.start
                finished = finished or delta.finish_reason is not None
                if delta.usage is not None:
                    outcome.is_counted = True
                    outcome.prompt_tokens = delta.usage.prompt_tokens
                    outcome.output_tokens = delta.usage.completion_tokens
        if not finished and not last:
            raise ServerError(0, "the answer was empty")
        if not last:  # tokens without text
            outcome.ttft = outcome.latency
        if not outcome.is_counted:
            outcome.output_tokens = len(outcome.itls) + bool(last)


async def send_all(
    load: Load, samples: Sequence[Sample], times: Sequence[float], max_open: int | None, bar: Bar
) -> tuple[list[Outcome], float]:
    """Send all samples; returns the outcomes in their order, and the duration in seconds.

    ``times``: when each is sent, see arrivals; at most ``max_open`` requests are open at once.
    """
    began = time.perf_counter()
    places = asyncio.Semaphore(max_open) if max_open else contextlib.nullcontext()

    async def one(sample: Sample, at: float) -> Outcome:
        await asyncio.sleep(began + at - time.perf_counter())
        outcome, due = Outcome(sample.prompt_tokens), time.perf_counter()
        async with places:
            outcome.queued = time.perf_counter() - due
            await load.send(sample, outcome)
        bar.take(outcome)
        return outcome

    found = await asyncio.gather(*map(one, samples, times))
    bar.erase()
    return found, time.perf_counter() - began


class Bar:
    """A progress bar on a terminal."""

    def __init__(self, words: str, total: int, *, show: bool = True) -> None:
        self._words, self._total, self._show = words, total, show
        self._bar = TerminalBar()
        self._done = self._failed = self._tokens = 0
        self._began = time.perf_counter()
        self._drawn = 0.0

    def take(self, outcome: Outcome) -> None:
        """Count one more finished request."""
        self._done += 1
        self._failed += bool(outcome.error)
        self._tokens += outcome.output_tokens
        now = time.perf_counter()
        if self._show and now - self._drawn > _DRAW_SECONDS:
            self._drawn = now
            failed = f", {self._failed} failed" if self._failed else ""
            rate = self._tokens / (now - self._began)
            stats = f"{self._done}/{self._total} requests{failed}, {rate:.1f} tokens/s"
            self._bar.draw(self._words, self._done, self._total, stats)

    def erase(self) -> None:
        """Erase the progress line from the terminal."""
        if self._show:
            self._bar.erase()
