# SPDX-License-Identifier: Apache-2.0
"""Counters of a worker for blocks transferred between workers."""

from __future__ import annotations

import threading
from collections import Counter

from rtp_llm.engine.messages import TRANSFER_COUNTERS


class TransferMetrics:
    """Counters of one worker; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()

    def add(self, **amounts: float) -> None:
        """Add to counters (TRANSFER_COUNTERS), which begin at 0 when they are first named."""
        with self._lock:
            for name, amount in amounts.items():
                assert name in TRANSFER_COUNTERS, f"the metrics know no figure {name}"
                self._counts[name] += amount  # type: ignore[assignment]

    def fail(self, code: str) -> None:
        """Count a failure by its code."""
        with self._lock:
            self._failures[code] += 1

    def read(self) -> tuple[dict[str, float], dict[str, int]]:
        """(counters, failures by code), copies of both."""
        with self._lock:
            return dict(self._counts), dict(self._failures)
