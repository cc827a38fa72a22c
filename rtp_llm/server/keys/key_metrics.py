# SPDX-License-Identifier: Apache-2.0
"""Per-key metrics for named keys: one series for each key of the file."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rtp_llm.server.keys.key_ring import KeyRing


class KeyCollector(Collector):
    """Collects each key's open requests and usage; without a key file it has no metrics."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    def collect(self) -> Iterator[Metric]:
        accounts = self._keys.named
        if not accounts:
            return
        label = ["key"]
        opened = GaugeMetricFamily("rtp_llm_key_open_requests", "Open requests.", labels=label)
        requests = CounterMetricFamily("rtp_llm_key_requests", "Requests taken.", labels=label)
        prompts = CounterMetricFamily("rtp_llm_key_prompt_tokens", "Prompt tokens.", labels=label)
        answers = CounterMetricFamily(
            "rtp_llm_key_completion_tokens", "Tokens generated.", labels=label
        )
        refused = CounterMetricFamily(
            "rtp_llm_key_refused_requests", "Requests that got 429.", labels=["key", "limit"]
        )
        for account in accounts:
            name = [account.key.name]
            opened.add_metric(name, account.open)
            requests.add_metric(name, account.requests)
            prompts.add_metric(name, account.prompt_tokens)
            answers.add_metric(name, account.completion_tokens)
            for limit, count in sorted(account.refused.items()):
                refused.add_metric([*name, limit], count)
        yield from (opened, requests, prompts, answers, refused)
