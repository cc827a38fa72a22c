# SPDX-License-Identifier: Apache-2.0
"""The router's own metrics; docs/disaggregation.md explains each name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rtp_llm.router.workers import Worker, Workers
from rtp_llm.server.http.connections import ConnectionPool
from rtp_llm.server.http.open_requests import OpenRequests
from rtp_llm.server.http.request_metrics import SECONDS
from rtp_llm.server.http.server_metrics import CONTENT_TYPE, ConnectionCollector

__all__ = ["CONTENT_TYPE", "RouterMetrics"]

_PREFIX = "rtp_llm_router_"
_STATES = ("closed", "half_open", "open")

# Name, help and value of a worker's gauges.
_WORKER_GAUGES: tuple[tuple[str, str, Callable[[Worker], float]], ...] = (
    ("worker_healthy", "1 while its /health says that it takes requests.", lambda w: w.healthy),
    ("worker_open_requests", "Requests that are open there.", lambda w: w.open_requests),
    ("worker_failures_in_row", "Failures since its last answer.", lambda w: w.backoff.failures),
    (
        "worker_backoff_state",
        "0: requests go there; 1: one does, to see; 2: it is left out.",
        lambda w: _STATES.index(w.backoff.state),
    ),
    (
        "worker_backoff_seconds",
        "Until it is tried again; 0 unless it is left out.",
        lambda w: w.backoff.seconds_left,
    ),
)


class RouterMetrics:
    """Metrics in a separate registry. ``worker`` labels are addresses; "" is the router itself."""

    def __init__(self, workers: Workers, opened: OpenRequests) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            f"{_PREFIX}requests",
            "Finished requests by who answered and status.",
            ["worker", "code"],
            registry=registry,
        )
        self.retries = Counter(
            f"{_PREFIX}retries",
            "Requests that went on to another worker, by the one that did not answer them.",
            ["worker", "reason"],
            registry=registry,
        )
        self.failures = Counter(
            f"{_PREFIX}failures",
            "Requests that a worker left without a whole answer.",
            ["worker", "reason"],
            registry=registry,
        )
        self.seconds = Histogram(
            f"{_PREFIX}request_seconds",
            "From asking a worker to the last byte of its answer.",
            ["worker"],
            buckets=SECONDS,
            registry=registry,
        )
        self.first_byte = Histogram(
            f"{_PREFIX}first_byte_seconds",
            "From asking a worker to the first byte of its answer.",
            ["worker"],
            buckets=SECONDS,
            registry=registry,
        )
        registry.register(_Gauges(workers, opened))

    def watch_connections(self, pool: ConnectionPool) -> None:
        """Read the listener's metrics at each scrape."""
        self._registry.register(ConnectionCollector(pool, _PREFIX))

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self._registry)


class _Gauges(Collector):
    def __init__(self, workers: Workers, opened: OpenRequests) -> None:
        self._workers, self._opened = workers, opened

    def collect(self) -> Iterator[Metric]:
        for name, text, value in _WORKER_GAUGES:
            gauge = GaugeMetricFamily(_PREFIX + name, text, labels=["worker"])
            for worker in self._workers.all:
                gauge.add_metric([worker.url], float(value(worker)))
            yield gauge
        models = GaugeMetricFamily(
            _PREFIX + "worker_model", "1 for each model that it has.", labels=["worker", "model"]
        )
        for worker in self._workers.all:
            for model in worker.models or ():
                models.add_metric([worker.url, model], 1.0)
        yield models
        yield GaugeMetricFamily(
            _PREFIX + "open_requests", "Requests that are open.", float(self._opened.count)
        )
        yield GaugeMetricFamily(
            _PREFIX + "open_bytes", "Bytes held of their bodies.", float(self._opened.bytes)
        )
