# SPDX-License-Identifier: Apache-2.0
"""Per-request histograms: lengths, parameters and times."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram

from rtp_llm.request.sampling_params import SamplingParams

# Bucket bounds for lengths, from a single token to the longest contexts.
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, *(10**n * m for n in (3, 4, 5) for m in (1, 2, 5)))
SEQUENCES = (1, 2, 5, 10, 20, 50, 100)
INPUTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2, 5)


@dataclass(slots=True)
class SequenceTimes:
    """Timestamps of one sequence, in seconds of one clock, and its number of tokens so far."""

    arrival: float
    first_token: float = 0.0
    last_token: float = 0.0
    queued: float = 0.0
    tokens: int = 0


class RequestMetrics:
    """Updated once per prompt and once per finished sequence, not for each token."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"rtp_llm_{name}", text, buckets=buckets, registry=registry)

        self.begun = 0
        self._prompt_tokens = histogram("request_prompt_tokens", "Length of a prompt.", TOKENS)
        self._max_tokens = histogram("request_max_tokens", "max_tokens of a request.", TOKENS)
        self._n = histogram("request_n", "Sequences asked for with one prompt.", SEQUENCES)
        self._output_tokens = histogram("request_output_tokens", "Tokens of a sequence.", TOKENS)
        self._queue = histogram(
            "request_queue_seconds", "From arrival in the engine to the first step.", SECONDS
        )
        self._prefill = histogram(
            "request_prefill_seconds", "From the first step to the first token.", SECONDS
        )
        self._decode = histogram(
            "request_decode_seconds", "From the first to the last token.", SECONDS
        )
        self._inference = histogram(
            "request_inference_seconds", "From the first step to the last token.", SECONDS
        )
        self._end_to_end = histogram(
            "request_end_to_end_seconds", "From arrival to the last token.", SECONDS
        )
        self._per_token = histogram(
            "request_time_per_output_token_seconds",
            "Mean time between the tokens of a sequence.",
            TOKEN_SECONDS,
        )
        self._inputs = histogram(
            "request_inputs", "Texts of a request for vectors, scores or labels.", INPUTS
        )
        finished = Counter(
            "rtp_llm_finished_sequences",
            "Sequences that ended, by reason.",
            ["finish_reason"],
            registry=registry,
        )
        self._finished = functools.cache(finished.labels)  # looking up labels is slow

    def begin(self, prompt_tokens: int, params: SamplingParams) -> None:
        """Record a prompt that is sent to the engine."""
        self.begun += 1
        self._prompt_tokens.observe(prompt_tokens)
        self._n.observe(params.n)
        if isinstance(params.max_tokens, int):
            self._max_tokens.observe(params.max_tokens)

    def begin_pooling(self, num_inputs: int) -> None:
        """Record a request for vectors, scores or labels that is sent to the engine."""
        self.begun += 1
        self._inputs.observe(num_inputs)

    def end_pooling(self, seconds: float, queued: float) -> None:
        """Record such a request that finished."""
        self._finished("stop").inc()
        self._queue.observe(queued)
        self._end_to_end.observe(seconds)

    def abort(self, sequences: int) -> None:
        """Record sequences that ended early: the client disconnected, or something failed."""
        self._finished("abort").inc(sequences)

    def fail(self) -> None:
        """Record a sequence that ended because no token could be sampled."""
        self._finished("error").inc()

    def end(self, times: SequenceTimes, finish_reason: str) -> None:
        """Record a sequence that finished."""
        self._finished(finish_reason).inc()
        prefill = max(times.first_token - times.arrival - times.queued, 0.0)
        decode = times.last_token - times.first_token
        self._output_tokens.observe(times.tokens)
        self._queue.observe(times.queued)
        self._prefill.observe(prefill)
        self._decode.observe(decode)
        self._inference.observe(prefill + decode)
        self._end_to_end.observe(times.last_token - times.arrival)
        if times.tokens > 1:
            self._per_token.observe(decode / (times.tokens - 1))
