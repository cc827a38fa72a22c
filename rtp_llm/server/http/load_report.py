# SPDX-License-Identifier: Apache-2.0
"""ORCA's load report (Open Request Cost Aggregation), by which Envoy and others balance load.

Names and notation are vLLM's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from rtp_llm.engine.messages import EngineStats

WANTED, REPORT = b"endpoint-load-metrics-format", b"endpoint-load-metrics"


def load_report(headers: Mapping[bytes, bytes], stats: EngineStats) -> list[tuple[bytes, bytes]]:
    """The load report header that a request asks for; empty for none or an unknown format.

    `headers`: the request's headers, with lower-case names.
    """
    wanted = headers.get(WANTED, b"").strip().upper()
    if wanted not in (b"TEXT", b"JSON"):
        return []
    metrics = {
        "kv_cache_usage_perc": float(stats.kv_used_ratio),
        "num_requests_waiting": float(stats.waiting),
    }
    if wanted == b"JSON":
        report = json.dumps({"named_metrics": metrics})
    else:
        report = ", ".join(f"named_metrics.{name}={value}" for name, value in metrics.items())
    return [(REPORT, wanted + b" " + report.encode())]
