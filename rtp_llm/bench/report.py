# SPDX-License-Identifier: Apache-2.0
"""Results as `vllm bench serve` prints and saves them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rtp_llm.bench.metric_names import LATENCIES
from rtp_llm.bench.metrics import percentile_word

_WIDTH = 50
_ROWS = (
    ("Successful requests:", "completed"),
    ("Failed requests:", "failed"),
    ("Maximum request concurrency:", "max_concurrency"),
    ("Request rate configured (RPS):", "request_rate"),
    ("Benchmark duration (s):", "duration"),
    ("Total input tokens:", "total_input_tokens"),
    ("Total generated tokens:", "total_output_tokens"),
    ("Request throughput (req/s):", "request_throughput"),
    ("Request goodput (req/s):", "request_goodput"),
    ("Output token throughput (tok/s):", "output_throughput"),
    ("Peak output token throughput (tok/s):", "max_output_tokens_per_s"),
    ("Peak concurrent requests:", "max_concurrent_requests"),
    ("Total token throughput (tok/s):", "total_token_throughput"),
)


def serving_report(
    result: Mapping[str, Any], names: Sequence[str], percentiles: Sequence[float]
) -> str:
    """Format a result of `summarise` as text; rows without a value are omitted."""
    lines = [" Serving Benchmark Result ".center(_WIDTH, "=")]
    lines += [_row(label, result[name]) for label, name in _ROWS if _is_shown(result.get(name))]
    for name in names:
        short, heading = LATENCIES[name]
        lines.append(heading.center(_WIDTH, "-"))
        lines.append(_row(f"Mean {short} (ms):", result[f"mean_{name}_ms"]))
        lines.append(_row(f"Median {short} (ms):", result[f"median_{name}_ms"]))
        for each in map(percentile_word, percentiles):
            lines.append(_row(f"P{each} {short} (ms):", result[f"p{each}_{name}_ms"]))
    return "\n".join([*lines, "=" * _WIDTH])


def _is_shown(value: object) -> bool:
    return value is not None and value != "inf"


def _row(label: str, value: float) -> str:
    shown = f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{label:<40} {shown:<10}".rstrip()


def save(path: Path, result: Mapping[str, Any], *, append: bool = False) -> None:
    """Save as JSON; ``append``: add a line to the file instead. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a" if append else "w", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")


def file_name(label: str, rate: object, concurrency: int | None, model: str, date: str) -> str:
    """A file name as vLLM's: openai-infqps-concurrency8-MODEL-20260101-120000.json."""
    limit = f"-concurrency{concurrency}" if concurrency is not None else ""
    return f"{label}-{rate}qps{limit}-{model.rsplit('/', maxsplit=1)[-1]}-{date}.json"


def date_now() -> str:
    """The local time as it appears in results and file names."""
    return time.strftime("%Y%m%d-%H%M%S")
