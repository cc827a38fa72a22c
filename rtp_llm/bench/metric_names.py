# SPDX-License-Identifier: Apache-2.0
"""The names of latencies in flags and results, without what measures them."""

from __future__ import annotations

# Latencies: name in results -> how it is shown in lines and in a heading.
LATENCIES = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
    "client_queue_time": ("Client Queue Time", "Client-side Queueing"),
}
# Those that goodput may limit.
OBJECTIVES = ("ttft", "tpot", "e2el")
