# SPDX-License-Identifier: Apache-2.0
"""Spans and metrics of generating requests, by the GenAI conventions of OpenTelemetry.

Both are created when a request has ended and exported by threads of the SDK: there is no work per
token, and a slow or unreachable collector does not block anything. No content of a
request or an answer is exported.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from rtp_llm import __version__
from rtp_llm.request.params import PoolingParams
from rtp_llm.request.sampling_params import SamplingParams
from rtp_llm.server.generation.generation import Generation
from rtp_llm.server.generation.pooling import Pooling
from rtp_llm.server.telemetry.finished import FinishedRequest

PROVIDER = "rtp_llm"
MAX_SPANS = 2048  # queued for export; additional ones are dropped
EXPORT_SECONDS = 5.0  # timeout of one export
CLOSE_SECONDS = 2.0  # timeout of the final export at shutdown
# Bucket bounds in seconds, as required by the conventions.
_DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1),
    *(0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_NAMES = {"/v1/completions": "text_completion", "/v1/embeddings": "embeddings"}  # else "chat"

Attributes = dict[str, AttributeValue]
_log = logging.getLogger("rtp_llm.server")


class OtlpTelemetry:
    """See Telemetry. Each endpoint is an OTLP/HTTP URL; None disables traces or metrics."""

    def __init__(self, traces: str | None, metrics: str | None) -> None:
        name = os.environ.get("OTEL_SERVICE_NAME", "rtp-llm")
        resource = Resource.create({"service.name": name, "service.version": __version__})
        self._context = TraceContextTextMapPropagator()
        self._tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        if traces is not None:
            exporter = OTLPSpanExporter(traces, timeout=EXPORT_SECONDS)
            self._tracers.add_span_processor(BatchSpanProcessor(exporter, MAX_SPANS))
        readers = []
        if metrics is not None:
            sink = OTLPMetricExporter(metrics, timeout=EXPORT_SECONDS)
            readers.append(PeriodicExportingMetricReader(sink))
        self._meters = MeterProvider(readers, resource, shutdown_on_exit=False)
        self._has_traces, self._has_metrics = traces is not None, metrics is not None
        self._tracer = self._tracers.get_tracer("rtp_llm", __version__)
        histogram = self._meters.get_meter("rtp_llm", __version__).create_histogram
        self._duration, self._first_token, self._per_token = (
            histogram(
                f"gen_ai.server.{name}", "s", text, explicit_bucket_boundaries_advisory=bounds
            )
            for name, text, bounds in (
                ("request.duration", "From arrival to the last byte.", _DURATION),
                ("time_to_first_token", "From arrival to the first token.", _FIRST_TOKEN),
                ("time_per_output_token", "Mean time between later tokens.", _PER_TOKEN),
            )
        )

    def record(self, request: FinishedRequest) -> None:
        """Record a finished request; takes some tens of microseconds and never blocks."""
        pools = isinstance(request.generation, Pooling)
        operation = "embeddings" if pools else _NAMES.get(request.path, "chat")
        common: Attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": request.model,
            "gen_ai.response.model": request.model,
        }
        if error := _error_type(request):
            common["error.type"] = error
        if self._has_traces:
            self._add_span(f"{operation} {request.model}", request, common)
        if self._has_metrics:
            self._measure(request, common)

    def _add_span(self, name: str, request: FinishedRequest, common: Attributes) -> None:
        end = time.time_ns()
        carrier = {
            header: request.headers[header.encode()].decode("latin-1")
            for header in ("traceparent", "tracestate")
            if header.encode() in request.headers
        }
        span = self._tracer.start_span(
            name,
            context=self._context.extract(carrier),
            kind=SpanKind.SERVER,
            start_time=end - int(request.seconds * 1e9),
            attributes=common | dict(_of_request(request)),
        )
        if request.status >= 500 or (request.generation and request.generation.failure):
            span.set_status(Status(StatusCode.ERROR))
        span.end(end)

    def _measure(self, request: FinishedRequest, common: Attributes) -> None:
        self._duration.record(request.seconds, common)
        times = request.generation.times if request.generation else None
        if times is None or request.generation is None:
            return
        self._first_token.record(request.generation.first_token_seconds or 0.0, common)
        if times.tokens > 1:
            decode = times.last_token - times.first_token
            self._per_token.record(decode / (times.tokens - 1), common)

    def close(self) -> None:
        """Export the remaining records for at most CLOSE_SECONDS, then drop the rest."""
        deadline = time.monotonic() + CLOSE_SECONDS
        ends = [
            threading.Thread(target=_shut_down, args=(each,), daemon=True)
            for each in (self._tracers, self._meters)
        ]
        for end in ends:
            end.start()
        for end in ends:
            end.join(max(0.0, deadline - time.monotonic()))
        if any(end.is_alive() for end in ends):
            _log.warning("the last spans and metrics were not taken in %g s", CLOSE_SECONDS)


def _shut_down(provider: TracerProvider | MeterProvider) -> None:
    with contextlib.suppress(Exception):  # the SDK has logged it
        provider.shutdown()


def _error_type(request: FinishedRequest) -> str | None:
    """The error.type of a failed answer; a client disconnect is nginx's 499."""
    if request.generation is not None and request.generation.failure is not None:
        return request.generation.failure.code
    return str(request.status) if request.status >= 400 else None


def _of_request(request: FinishedRequest) -> Iterator[tuple[str, AttributeValue]]:
    yield "http.response.status_code", request.status
    yield "rtp_llm.request_id", request.request_id
    if request.key_name:
        yield "rtp_llm.key", request.key_name
    yield "gen_ai.latency.e2e", request.seconds
    if request.generation is not None:
        yield from _of_params(request.generation.params)
        if (choices := request.generation.choices_per_prompt) > 1:
            yield "gen_ai.request.choice.count", choices
        yield from _of_generation(request.generation)


def _of_params(params: SamplingParams | PoolingParams) -> Iterator[tuple[str, AttributeValue]]:
    for name in ("max_tokens", "temperature", "top_p", "top_k", "seed"):
        value = getattr(params, name, None)
        if value is not None:
            yield f"gen_ai.request.{name}", value


def _of_generation(generation: Generation | Pooling) -> Iterator[tuple[str, AttributeValue]]:
    usage, times = generation.usage, generation.times
    yield "gen_ai.usage.input_tokens", usage.prompt_tokens
    yield "gen_ai.usage.output_tokens", usage.completion_tokens
    yield "gen_ai.usage.cache_read.input_tokens", usage.cached_tokens
    # As vLLM and SGLang name them.
    yield "gen_ai.usage.prompt_tokens", usage.prompt_tokens
    yield "gen_ai.usage.completion_tokens", usage.completion_tokens
    yield "gen_ai.response.finish_reasons", list(generation.finish_reasons)
    if times is None:
        return
    yield "gen_ai.latency.time_in_queue", times.queued
    yield "gen_ai.latency.time_to_first_token", times.first_token - times.arrival
    prefill = times.first_token - times.arrival - times.queued
    yield "gen_ai.latency.time_in_model_prefill", max(0.0, prefill)
    yield "gen_ai.latency.time_in_model_decode", times.last_token - times.first_token
