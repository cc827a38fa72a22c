# SPDX-License-Identifier: Apache-2.0
"""Our metrics under the names of vLLM and SGLang, so that their dashboards keep working.

Each family is renamed at the scrape; nothing is counted twice. Names whose feature does not exist
here are absent (docs/serving.md lists them).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
)
from prometheus_client.samples import Sample

from rtp_llm.engine.messages import EngineReady, EngineStats

# Our family -> theirs. Counters are named without the suffix _total.
VLLM: Mapping[str, str] = {
    "rtp_llm_running_sequences": "vllm:num_requests_running",
    "rtp_llm_waiting_sequences": "vllm:num_requests_waiting",
    "rtp_llm_kv_cache_used_ratio": "vllm:kv_cache_usage_perc",
    "rtp_llm_prompt_tokens": "vllm:prompt_tokens",
    "rtp_llm_generated_tokens": "vllm:generation_tokens",
    "rtp_llm_cached_prompt_tokens": "vllm:prompt_tokens_cached",
    "rtp_llm_finished_sequences": "vllm:request_success",
    "rtp_llm_preemptions": "vllm:num_preemptions",
    "rtp_llm_prefix_cache_query_tokens": "vllm:prefix_cache_queries",
    "rtp_llm_prefix_cache_hit_tokens": "vllm:prefix_cache_hits",
    "rtp_llm_first_token_seconds": "vllm:time_to_first_token_seconds",
    "rtp_llm_inter_token_seconds": "vllm:inter_token_latency_seconds",
    "rtp_llm_request_time_per_output_token_seconds": "vllm:request_time_per_output_token_seconds",
    "rtp_llm_request_end_to_end_seconds": "vllm:e2e_request_latency_seconds",
    "rtp_llm_request_queue_seconds": "vllm:request_queue_time_seconds",
    "rtp_llm_request_prefill_seconds": "vllm:request_prefill_time_seconds",
    "rtp_llm_request_decode_seconds": "vllm:request_decode_time_seconds",
    "rtp_llm_request_inference_seconds": "vllm:request_inference_time_seconds",
    "rtp_llm_request_prompt_tokens": "vllm:request_prompt_tokens",
    "rtp_llm_request_output_tokens": "vllm:request_generation_tokens",
    "rtp_llm_request_n": "vllm:request_params_n",
    "rtp_llm_request_max_tokens": "vllm:request_params_max_tokens",
    "rtp_llm_iteration_tokens": "vllm:iteration_tokens_total",
    "rtp_llm_spec_decode_num_drafts": "vllm:spec_decode_num_drafts",
    "rtp_llm_spec_decode_num_draft_tokens": "vllm:spec_decode_num_draft_tokens",
    "rtp_llm_spec_decode_num_accepted_tokens": "vllm:spec_decode_num_accepted_tokens",
    "rtp_llm_spec_decode_num_accepted_tokens_per_pos": (
        "vllm:spec_decode_num_accepted_tokens_per_pos"
    ),
}
SGLANG: Mapping[str, str] = {
    "rtp_llm_running_sequences": "sglang:num_running_reqs",
    "rtp_llm_waiting_sequences": "sglang:num_queue_reqs",
    "rtp_llm_kv_cache_used_ratio": "sglang:token_usage",
    "rtp_llm_prompt_tokens": "sglang:prompt_tokens",
    "rtp_llm_generated_tokens": "sglang:generation_tokens",
    "rtp_llm_cached_prompt_tokens": "sglang:cached_tokens",
    "rtp_llm_first_token_seconds": "sglang:time_to_first_token_seconds",
    "rtp_llm_inter_token_seconds": "sglang:inter_token_latency_seconds",
    "rtp_llm_request_end_to_end_seconds": "sglang:e2e_request_latency_seconds",
    "rtp_llm_request_queue_seconds": "sglang:queue_time_seconds",
    "rtp_llm_spec_decode_mean_acceptance_length": "sglang:spec_accept_length",
}
_LABELS = {"finish_reason": "finished_reason"}
_SHORTEST = 1.0  # seconds over which a rate is measured


def renamed(families: Iterable[Metric], names: Mapping[str, str]) -> Iterator[Metric]:
    """The families of `names`, renamed as in the other engine."""
    for family in families:
        name = names.get(family.name)
        if name is None:
            continue
        copy = Metric(name, family.documentation, family.type)
        copy.samples = [
            sample._replace(
                name=name + sample.name.removeprefix(family.name),
                labels={_LABELS.get(key, key): value for key, value in sample.labels.items()},
            )
            for sample in family.samples
        ]
        yield copy


def labelled(families: Iterable[Metric], labels: Mapping[str, str]) -> Iterator[Metric]:
    """The families with `labels` added to every sample, ahead of the sample's own labels."""
    for family in families:
        family.samples = [
            Sample(each.name, {**labels, **each.labels}, *each[2:]) for each in family.samples
        ]
        yield family


def vllm_config(ready: EngineReady | None) -> Iterator[Metric]:
    """vLLM's gauge whose labels describe the KV cache."""
    if ready is None:
        return
    labels = {
        "block_size": str(ready.block_size),
        "num_gpu_blocks": str(ready.num_blocks),
        "cache_dtype": ready.dtype,
    }
    family = GaugeMetricFamily(
        "vllm:cache_config_info", "The KV cache, in its labels.", labels=list(labels)
    )
    family.add_metric(list(labels.values()), 1.0)
    yield family


class SglangGauges:
    """SGLang's metrics that do not correspond to one of our families."""

    def __init__(self) -> None:
        self._since = (time.monotonic(), 0)
        self._throughput = 0.0

    def collect(
        self,
        stats: EngineStats,
        ready: EngineReady | None,
        *,
        generated: int,
        requests: int,
        aborted: float,
    ) -> Iterator[Metric]:
        """Collect from totals: `generated` tokens, `requests`, and how many of them `aborted`."""
        block = ready.block_size if ready else 0
        queried = stats.prefix_query_tokens
        values = {
            "num_used_tokens": (stats.total_blocks - stats.free_blocks) * block,
            "max_total_num_tokens": stats.total_blocks * block,
            "cache_hit_rate": stats.prefix_hit_tokens / queried if queried else 0.0,
            "gen_throughput": self._rate(generated),
            "utilization": stats.running / ready.max_running if ready else 0.0,
            "num_retracted_reqs": stats.preemptions,
        }
        for name, value in values.items():
            yield GaugeMetricFamily(f"sglang:{name}", f"As SGLang's {name}.", float(value))
        yield CounterMetricFamily("sglang:num_requests", "Requests that generate.", requests)
        yield CounterMetricFamily("sglang:num_aborted_requests", "Of these, cut short.", aborted)

    def _rate(self, generated: int) -> float:
        """Tokens per second since the previous scrape."""
        now = time.monotonic()
        then, before = self._since
        if now - then >= _SHORTEST:
            self._throughput = (generated - before) / (now - then)
            self._since = (now, generated)
        return self._throughput
