# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics; docs/serving.md explains each name."""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from rtp_llm.engine.messages import TRANSFER_COUNTERS, TRANSFER_GAUGES, EngineStats
from rtp_llm.server.http.connections import ConnectionPool
from rtp_llm.server.http.metrics_compat import (
    SGLANG,
    VLLM,
    SglangGauges,
    labelled,
    renamed,
    vllm_config,
)
from rtp_llm.server.http.request_metrics import SECONDS, TOKEN_SECONDS, TOKENS, RequestMetrics
from rtp_llm.server.types.engine_interface import EngineInterface

# Without this, each counter and histogram also exports a series with its creation time.
disable_created_metrics()  # type: ignore[no-untyped-call]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BATCH_BUCKETS = (1, 2, 4, 8, 12, 15, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)

# Name, help text and field of EngineStats.
ENGINE_GAUGES = (
    ("rtp_llm_running_sequences", "Sequences being generated.", "running"),
    ("rtp_llm_waiting_sequences", "Sequences in the queue.", "waiting"),
    ("rtp_llm_kv_cache_used_ratio", "Share of KV cache blocks in use, 0 to 1.", "kv_used_ratio"),
    ("rtp_llm_kv_cache_blocks", "KV cache blocks.", "total_blocks"),
    (
        "rtp_llm_kv_cache_free_blocks",
        "KV cache blocks that can be had, kept ones included.",
        "free_blocks",
    ),
    (
        "rtp_llm_kv_cache_cached_blocks",
        "Blocks in the prefix cache, in use or not.",
        "cached_blocks",
    ),
    ("rtp_llm_step_seconds", "Duration of the last engine step.", "step_seconds"),
    ("rtp_llm_step_age_seconds", "Age of the present engine step, 0 between steps.", "step_age"),
    (
        "rtp_llm_receiving_sequences",
        "Sequences that wait for a prompt of another worker.",
        "receiving",
    ),
    (
        "rtp_llm_held_sequences",
        "Sequences, ended ones included, whose blocks a transfer reads or writes.",
        "held",
    ),
    ("rtp_llm_engine_resident_bytes", "Resident memory of the engine.", "resident_bytes"),
)
ENGINE_COUNTERS = (
    ("rtp_llm_engine_steps", "Engine steps.", "steps"),
    ("rtp_llm_preemptions", "Sequences preempted and recomputed.", "preemptions"),
    ("rtp_llm_prefix_cache_hit_tokens", "Prompt tokens found cached.", "prefix_hit_tokens"),
    ("rtp_llm_prefix_cache_query_tokens", "Prompt tokens looked up.", "prefix_query_tokens"),
    (
        "rtp_llm_degenerate_rows",
        "Sequences that ended because no token could be sampled: NaN, infinity or all forbidden.",
        "degenerate_rows",
    ),
    (
        "rtp_llm_spec_decode_num_drafts",
        "Times that drafts of a sequence were verified.",
        "spec_decode_num_drafts",
    ),
    (
        "rtp_llm_spec_decode_num_draft_tokens",
        "Draft tokens that were verified.",
        "spec_decode_num_draft_tokens",
    ),
    (
        "rtp_llm_spec_decode_num_accepted_tokens",
        "Draft tokens that were accepted.",
        "spec_decode_num_accepted_tokens",
    ),
)


class Metrics:
    """The server's metrics, in a separate registry."""

    def __init__(self, model_name: str = "", compat: str = "none") -> None:
        """`compat`: another engine whose metric names are exported, too (--metrics-compat)."""
        self.registry = registry = CollectorRegistry()
        self._labels = {"model_name": model_name}
        self._compat = compat
        self._sglang = SglangGauges()
        self._engine: EngineInterface | None = None

        def counter(name: str, text: str, labels: Sequence[str] = ()) -> Counter:
            return Counter(f"rtp_llm_{name}", text, labels, registry=registry)

        def histogram(
            name: str, text: str, buckets: Sequence[float], labels: Sequence[str] = ()
        ) -> Histogram:
            return Histogram(f"rtp_llm_{name}", text, labels, buckets=buckets, registry=registry)

        self.requests = counter("requests", "Finished requests.", ["path", "code"])
        self.disconnects = counter("disconnects", "Requests whose client went away.")
        self.cut = counter("cut_requests", "Answers cut by a shutdown.")
        self.open_requests = Gauge(
            "rtp_llm_open_requests", "Generating requests that are open.", registry=registry
        )
        self.request_seconds = histogram(
            "request_seconds", "From arrival to the last byte.", SECONDS, ["path"]
        )
        self.first_token = histogram(
            "first_token_seconds", "From arrival to the first token.", SECONDS
        )
        self.batch_size = histogram("batch_size", "Sequences in one engine step.", BATCH_BUCKETS)
        self.step_tokens = histogram("step_tokens", "Tokens computed in one engine step.", TOKENS)
        self.new_tokens = histogram(
            "iteration_tokens",
            "Tokens generated in one engine step, and the prompts computed for the first of them.",
            TOKENS,
        )
        self.requested = RequestMetrics(registry)
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts.")
        self.cached_tokens = counter("cached_prompt_tokens", "Prompt tokens found cached.")
        self.tokens = TokenFigures()
        registry.register(self.tokens)

    def count_request(self, path: str, code: int, seconds: float) -> None:
        """Count a request that has ended; ``path``: of a route, or "other"."""
        counter, histogram = self._of_request(path, code)
        counter.inc()
        histogram.observe(seconds)

    @functools.lru_cache(maxsize=1024)  # noqa: B019 - there is one Metrics a server
    def _of_request(self, path: str, code: int) -> tuple[Counter, Histogram]:
        """Looking up labels costs more than counting."""
        return self.requests.labels(path, str(code)), self.request_seconds.labels(path)

    def observe_step(self, num_sequences: int, num_tokens: int, new_tokens: int) -> None:
        """See OnStep."""
        self.batch_size.observe(num_sequences)
        self.step_tokens.observe(num_tokens)
        if new_tokens:
            self.new_tokens.observe(new_tokens)

    def watch_engine(self, engine: EngineInterface, ready: Callable[[], bool]) -> None:
        """Read the engine's own metrics at each scrape."""
        self._engine = engine
        self.registry.register(_EngineCollector(engine, ready))

    def watch_connections(self, pool: ConnectionPool) -> None:
        """Read the listener's metrics at each scrape."""
        self.registry.register(ConnectionCollector(pool))

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(_Families(self._collect()))

    def _collect(self) -> Iterator[Metric]:
        families = list(self.registry.collect())
        theirs = list(self._of_other_engines(families))
        yield from labelled(families, self._labels)
        yield from theirs

    def _of_other_engines(self, families: list[Metric]) -> Iterator[Metric]:
        ready = self._engine.ready if self._engine else None
        if self._compat == "vllm":
            found = [*renamed(families, VLLM), *vllm_config(ready)]
            yield from labelled(found, {**self._labels, "engine": "0"})
        elif self._compat == "sglang":
            stats = self._engine.latest_stats if self._engine else EngineStats()
            gauges = self._sglang.collect(
                stats,
                ready,
                generated=self.tokens.generated,
                requests=self.requested.begun,
                aborted=self._sum(families, "rtp_llm_disconnects", "rtp_llm_cut_requests"),
            )
            yield from labelled([*renamed(families, SGLANG), *gauges], self._labels)

    @staticmethod
    def _sum(families: list[Metric], *names: str) -> float:
        return sum(s.value for family in families if family.name in names for s in family.samples)


class _Families(CollectorRegistry):
    """A registry of already collected families, for the library's formatter."""

    def __init__(self, families: Iterable[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


class TokenFigures(Collector):
    """Per-token counters. Plain numbers, as only the event loop's thread updates them.

    The library's own classes take a lock for each update, which is noticeable at 100,000 tokens/s.
    """

    def __init__(self) -> None:
        self.generated = 0
        self._seconds = 0.0
        self._counts = [0] * (len(TOKEN_SECONDS) + 1)

    def observe_gap(self, seconds: float, tokens: int) -> None:
        """Record `tokens` of one sequence that arrived `seconds` after its previous token."""
        self._counts[bisect_left(TOKEN_SECONDS, seconds / tokens)] += tokens
        self._seconds += seconds

    def collect(self) -> Iterator[Metric]:
        bounds = [*map(floatToGoString, TOKEN_SECONDS), "+Inf"]
        yield HistogramMetricFamily(
            "rtp_llm_inter_token_seconds",
            "Between two tokens of one sequence.",
            list(zip(bounds, accumulate(self._counts), strict=True)),
            self._seconds,
        )
        yield CounterMetricFamily(
            "rtp_llm_generated_tokens", "Tokens generated.", float(self.generated)
        )


class ConnectionCollector(Collector):
    """Metrics of a listener's open and refused connections; ``prefix``: of the metric names."""

    def __init__(self, pool: ConnectionPool, prefix: str = "rtp_llm_") -> None:
        self._pool, self._prefix = pool, prefix

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            self._prefix + "open_connections", "Connections of clients.", len(self._pool.open)
        )
        refused = CounterMetricFamily(
            self._prefix + "refused_connections",
            "Connections that were refused or cut, by reason.",
            labels=["reason"],
        )
        for reason, count in sorted(self._pool.refused.items()):
            refused.add_metric([reason], count)
        yield refused


class _EngineCollector(Collector):
    def __init__(self, engine: EngineInterface, ready: Callable[[], bool]) -> None:
        self._engine = engine
        self._ready = ready

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.latest_stats
        for name, text, field in ENGINE_GAUGES:
            yield GaugeMetricFamily(name, text, value=float(getattr(stats, field)))
        for name, text, field in ENGINE_COUNTERS:
            yield CounterMetricFamily(name, text, value=float(getattr(stats, field)))
        yield from _acceptance(stats)
        yield from _transfers(stats)
        yield GaugeMetricFamily(
            "rtp_llm_engine_up",
            "1 while the engine's heartbeat is young.",
            float(self._engine.alive),
        )
        yield from _restarts(self._engine)
        yield GaugeMetricFamily(
            "rtp_llm_ready", "1 while requests are admitted.", float(self._ready())
        )


def _restarts(engine: EngineInterface) -> Iterator[Metric]:
    up, ranks = engine.ranks_up
    yield GaugeMetricFamily("rtp_llm_engine_ranks", "Engine processes.", ranks)
    yield GaugeMetricFamily("rtp_llm_engine_ranks_up", "Engine processes that serve.", up)
    yield CounterMetricFamily(
        "rtp_llm_engine_restarts", "Restarts of engine processes.", engine.restarts.total
    )
    yield CounterMetricFamily(
        "rtp_llm_replayed_requests",
        "Requests computed again because the engine died before their first token.",
        engine.restarts.replayed,
    )


def _acceptance(stats: EngineStats) -> Iterator[Metric]:
    """Metrics of speculative decoding; absent until the first draft."""
    drafts = stats.spec_decode_num_drafts
    if not drafts:
        return
    by_place = CounterMetricFamily(
        "rtp_llm_spec_decode_num_accepted_tokens_per_pos",
        "Accepted draft tokens, by their position after the last token, from 0.",
        labels=["position"],
    )
    for place, count in enumerate(stats.spec_decode_accepted_per_pos):
        by_place.add_metric([str(place)], float(count))
    yield by_place
    yield GaugeMetricFamily(
        "rtp_llm_spec_decode_num_speculative_tokens",
        "Draft tokens of a sequence that a step takes now, by the load.",
        stats.spec_decode_num_speculative_tokens,
    )
    yield GaugeMetricFamily(
        "rtp_llm_spec_decode_mean_acceptance_length",
        "Tokens that a verified sequence gained in a step: accepted drafts and one more.",
        1 + stats.spec_decode_num_accepted_tokens / drafts,
    )


def _transfers(stats: EngineStats) -> Iterator[Metric]:
    """Metrics of prefill/decode disaggregation; absent on a worker that does both."""
    for name, text in TRANSFER_COUNTERS.items():
        if name in stats.transfers:
            yield CounterMetricFamily(f"rtp_llm_transfer_{name}", text, stats.transfers[name])
    for name, text in TRANSFER_GAUGES.items():
        if name in stats.transfers:
            yield GaugeMetricFamily(f"rtp_llm_transfer_{name}", text, stats.transfers[name])
    if stats.transfers:
        failures = CounterMetricFamily(
            "rtp_llm_transfer_failures", "Prompts that failed on their way.", labels=["code"]
        )
        for code, count in sorted(stats.transfer_failures.items()):
            failures.add_metric([code], float(count))
        yield failures
