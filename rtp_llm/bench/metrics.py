# SPDX-License-Identifier: Apache-2.0
"""Throughput and latencies of a run, under the names of `vllm bench serve`."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rtp_llm.bench.load import Outcome


def tpot(outcome: Outcome) -> float:
    """Seconds per output token, excluding the first; 0 if there is only one."""
    if outcome.output_tokens < 2:
        return 0.0
    return (outcome.latency - outcome.ttft) / (outcome.output_tokens - 1)


def summarise(
    outcomes: Sequence[Outcome],
    seconds: float,
    goals: Mapping[str, float],
    names: Sequence[str],
    percentiles: Sequence[float],
) -> dict[str, Any]:
    """Summarise a run of ``seconds``.

    ``goals``: limits in milliseconds for goodput, by names of OBJECTIVES; ``names``: the keys of
    LATENCIES to include.
    """
    done = [each for each in outcomes if not each.error]
    prompt = sum(each.prompt_tokens for each in done)
    output = sum(each.output_tokens for each in done)
    return {
        "duration": seconds,
        "completed": len(done),
        "failed": len(outcomes) - len(done),
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": len(done) / seconds,
        "request_goodput": _good(done, goals) / seconds if goals else None,
        "output_throughput": output / seconds,
        "total_token_throughput": (prompt + output) / seconds,
        "max_output_tokens_per_s": _peak_rate(done),
        "max_concurrent_requests": _peak_open(done),
        **_latencies(done, names, percentiles),
    }


def details(outcomes: Sequence[Outcome]) -> dict[str, list[Any]]:
    """Per-request fields for --save-detailed, in the order of the requests."""
    return {
        "input_lens": [each.prompt_tokens for each in outcomes],
        "output_lens": [each.output_tokens for each in outcomes],
        "ttfts": [each.ttft for each in outcomes],
        "itls": [each.itls for each in outcomes],
        "latencies": [each.latency for each in outcomes],
        "start_times": [each.start for each in outcomes],
        "queue_times": [each.queued for each in outcomes],
        "generated_texts": [each.text for each in outcomes],
        "errors": [each.error for each in outcomes],
    }


def percentile_word(percentile: float) -> str:
    """A percentile as in the name p99_ttft_ms: 99 or 99.9."""
    return f"{percentile:g}"


def _latencies(
    done: Sequence[Outcome], names: Sequence[str], percentiles: Sequence[float]
) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in names:
        values = np.array(_values(done, name) or [0.0]) * 1e3
        found[f"mean_{name}_ms"] = float(values.mean())
        found[f"median_{name}_ms"] = float(np.median(values))
        found[f"std_{name}_ms"] = float(values.std())
        for each in percentiles:
            found[f"p{percentile_word(each)}_{name}_ms"] = float(np.percentile(values, each))
    return found


def _values(done: Sequence[Outcome], name: str) -> list[float]:
    if name == "itl":
        return list(itertools.chain.from_iterable(each.itls for each in done))
    if name == "tpot":
        return [tpot(each) for each in done if each.output_tokens > 1]
    field = {"ttft": "ttft", "e2el": "latency", "client_queue_time": "queued"}[name]
    return [getattr(each, field) for each in done]


def _good(done: Sequence[Outcome], goals: Mapping[str, float]) -> int:
    def is_good(each: Outcome) -> bool:
        found = {"ttft": each.ttft, "tpot": tpot(each), "e2el": each.latency}
        return all(1e3 * found[name] <= limit for name, limit in goals.items())

    return sum(map(is_good, done))


def _peak_rate(done: Sequence[Outcome]) -> float:
    """Tokens in the busiest second; an answer's tokens are spread evenly over its events."""
    began = min((each.start for each in done), default=0.0)
    buckets: dict[int, float] = defaultdict(float)
    for each in done:
        times = itertools.accumulate(each.itls, initial=each.start + each.ttft - began)
        for at in times:
            buckets[math.floor(at)] += each.output_tokens / (len(each.itls) + 1)
    return max(buckets.values(), default=0.0)


def _peak_open(done: Sequence[Outcome]) -> int:
    changes = [(each.start, 1) for each in done]
    changes += [(each.start + each.latency, -1) for each in done]
    return max(itertools.accumulate(change for _, change in sorted(changes)), default=0)
