# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rtp_llm.engine.messages import TRANSFER_COUNTERS, TRANSFER_GAUGES, EngineStats
from rtp_llm.testing.server.serving import fake_engine, run, served

PAGE = Path(__file__).parents[3] / "docs" / "serving.md"
TRANSFERS = dict.fromkeys(TRANSFER_COUNTERS | TRANSFER_GAUGES, 2.5)


async def scrape(server: object) -> dict[str, float]:
    text = (await server.client.get("/metrics")).text  # type: ignore[attr-defined]
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    assert all(s.labels["model_name"] == "demo" for s in samples)
    return {
        s.name + "".join(f"|{v}" for k, v in s.labels.items() if k != "model_name"): s.value
        for s in samples
    }


@run
async def test_requests_tokens_and_outcomes() -> None:
    engine = fake_engine("a house.")
    engine.cached_tokens = 5
    async with served(engine) as server:
        await server.chat(n=2)
        await server.chat(temperature=-1)
        await server.complete(stream=True)
        await server.client.get("/scan/for/anything")
        await server.client.get("/v1/models/demo")
        values = await scrape(server)
        assert values["rtp_llm_requests_total|200|/v1/chat/completions"] == 1
        assert values["rtp_llm_requests_total|400|/v1/chat/completions"] == 1
        assert values["rtp_llm_requests_total|200|/v1/completions"] == 1
        assert values["rtp_llm_requests_total|404|other"] == 1
        assert values["rtp_llm_requests_total|200|/v1/models/{name:path}"] == 1
        assert values["rtp_llm_prompt_tokens_total"] == 16 + 3
        assert values["rtp_llm_cached_prompt_tokens_total"] == 5 + 5
        assert values["rtp_llm_generated_tokens_total"] == 4 * 3
        assert values["rtp_llm_first_token_seconds_count"] == 2
        assert values["rtp_llm_inter_token_seconds_count"] == 3 * 3
        assert values["rtp_llm_batch_size_bucket|1.0"] == 4
        assert values["rtp_llm_batch_size_bucket|2.0"] == 8
        assert values["rtp_llm_open_requests"] == 0


@run
async def test_acceptance_of_drafts() -> None:
    async with served() as server:
        assert not any("_per_pos" in name for name in await scrape(server))
        server.engine.latest_stats = EngineStats(
            spec_decode_num_speculative_tokens=3,
            spec_decode_num_drafts=4,
            spec_decode_num_draft_tokens=12,
            spec_decode_num_accepted_tokens=6,
            spec_decode_accepted_per_pos=(3, 2, 1),
        )
        values = await scrape(server)
        assert values["rtp_llm_spec_decode_num_draft_tokens_total"] == 12
        assert values["rtp_llm_spec_decode_num_accepted_tokens_per_pos_total|1"] == 2
        assert values["rtp_llm_spec_decode_mean_acceptance_length"] == 2.5
        assert values["rtp_llm_spec_decode_num_speculative_tokens"] == 3


@run
async def test_the_engine_s_own_metrics() -> None:
    async with served() as server:
        server.engine.latest_stats = EngineStats(
            running=7,
            waiting=9,
            kv_used_ratio=0.25,
            preemptions=3,
            prefix_hit_tokens=100,
            step_age=12.5,
        )
        values = await scrape(server)
        assert values["rtp_llm_running_sequences"] == 7
        assert values["rtp_llm_waiting_sequences"] == 9
        assert values["rtp_llm_kv_cache_used_ratio"] == 0.25
        assert values["rtp_llm_preemptions_total"] == 3
        assert values["rtp_llm_step_age_seconds"] == 12.5
        assert values["rtp_llm_prefix_cache_hit_tokens_total"] == 100
        assert values["rtp_llm_engine_up"] == values["rtp_llm_ready"] == 1
        server.state.start_draining()
        assert (await scrape(server))["rtp_llm_ready"] == 0
        server.engine.die()
        assert (await scrape(server))["rtp_llm_engine_up"] == 0


@run
async def test_metrics_of_transfers_are_counters_but_for_those_of_now() -> None:
    async with served() as server:
        assert not any("transfer" in name for name in await scrape(server))
        stats = EngineStats(transfers=TRANSFERS, transfer_failures={"peer_lost": 3})
        server.engine.latest_stats = stats
        values = await scrape(server)
        for name in TRANSFER_COUNTERS:
            assert values[f"rtp_llm_transfer_{name}_total"] == 2.5
        for name in TRANSFER_GAUGES:
            assert values[f"rtp_llm_transfer_{name}"] == 2.5
        assert values["rtp_llm_transfer_failures_total|peer_lost"] == 3


@run
async def test_every_metric_is_documented() -> None:
    page = PAGE.read_text()
    async with served() as server:
        server.engine.latest_stats = EngineStats(transfers=TRANSFERS, spec_decode_num_drafts=1)
        families = text_string_to_metric_families((await server.client.get("/metrics")).text)
        names = {f.name + ("_total" if f.type == "counter" else "") for f in families}
    assert len(names) > 20
    missing = sorted(name for name in names if f"`{name}`" not in page)
    assert not missing, f"docs/serving.md does not name {missing}"


@run
async def test_lengths_options_and_times_of_requests() -> None:
    engine = fake_engine("a house.")
    engine.queue_seconds = 0.75
    async with served(engine) as server:
        await server.chat(n=2, max_tokens=30)
        await server.complete(max_tokens=1)
        values = await scrape(server)
        assert values["rtp_llm_request_prompt_tokens_count"] == 2
        assert values["rtp_llm_request_n_sum"] == 3
        assert values["rtp_llm_request_max_tokens_sum"] == 31
        assert values["rtp_llm_request_output_tokens_count"] == 3
        assert (
            values["rtp_llm_request_output_tokens_sum"] == values["rtp_llm_generated_tokens_total"]
        )
        assert values["rtp_llm_finished_sequences_total|stop"] == 2
        assert values["rtp_llm_finished_sequences_total|length"] == 1
        assert values["rtp_llm_request_queue_seconds_sum"] == 3 * 0.75
        # The fake engine says that it queued for longer than the requests took.
        assert values["rtp_llm_request_prefill_seconds_sum"] == 0
        decode = values["rtp_llm_request_decode_seconds_sum"]
        assert 0 < decode == values["rtp_llm_request_inference_seconds_sum"]
        assert values["rtp_llm_request_end_to_end_seconds_sum"] >= decode
        assert values["rtp_llm_request_time_per_output_token_seconds_count"] == 2
        prompts = values["rtp_llm_request_prompt_tokens_sum"]
        drawn = values["rtp_llm_generated_tokens_total"]
        assert values["rtp_llm_iteration_tokens_sum"] == prompts + drawn
        assert values["rtp_llm_step_tokens_count"] == values["rtp_llm_batch_size_count"] > 0


# What other engines' dashboards read, and this engine has (docs/serving.md: the rest).
COMPAT = {
    "vllm": """num_requests_running num_requests_waiting kv_cache_usage_perc cache_config_info
        prompt_tokens_total generation_tokens_total prompt_tokens_cached_total request_success_total
        num_preemptions_total prefix_cache_queries_total prefix_cache_hits_total
        time_to_first_token_seconds inter_token_latency_seconds
        request_time_per_output_token_seconds e2e_request_latency_seconds
        request_queue_time_seconds request_prefill_time_seconds request_decode_time_seconds
        request_inference_time_seconds request_prompt_tokens request_generation_tokens
        request_params_n request_params_max_tokens iteration_tokens_total
        spec_decode_num_drafts_total spec_decode_num_draft_tokens_total
        spec_decode_num_accepted_tokens_total spec_decode_num_accepted_tokens_per_pos_total""",
    "sglang": """num_running_reqs num_queue_reqs num_used_tokens max_total_num_tokens token_usage
        cache_hit_rate gen_throughput utilization num_retracted_reqs prompt_tokens_total
        generation_tokens_total cached_tokens_total num_requests_total num_aborted_requests_total
        time_to_first_token_seconds inter_token_latency_seconds e2e_request_latency_seconds
        queue_time_seconds spec_accept_length""",
}


@pytest.mark.parametrize("other", COMPAT)
@run
async def test_names_of_other_engines(other: str) -> None:
    async with served(fake_engine("a house."), metrics_compat=other) as server:
        stats = EngineStats(
            running=3,
            total_blocks=10,
            free_blocks=4,
            prefix_hit_tokens=30,
            prefix_query_tokens=40,
            spec_decode_num_drafts=1,
        )
        server.engine.latest_stats = stats
        await server.chat(n=2)
        page = (await server.client.get("/metrics")).text
        theirs = [
            family
            for family in text_string_to_metric_families(page)
            if family.name.startswith(f"{other}:")
        ]
        names = {f.name + ("_total" if f.type == "counter" else "") for f in theirs}
        assert names == {f"{other}:{name}" for name in COMPAT[other].split()}
        labels = {"model_name": "demo"} | ({"engine": "0"} if other == "vllm" else {})
        assert all(labels.items() <= s.labels.items() for f in theirs for s in f.samples)
        values = {s.name: s.value for f in theirs for s in f.samples}
        if other == "vllm":
            (success,) = (f for f in theirs if f.name == "vllm:request_success")
            assert [s.labels["finished_reason"] for s in success.samples] == ["stop"]
            assert success.samples[0].value == 2
            assert values["vllm:num_requests_running"] == 3
            assert values["vllm:time_to_first_token_seconds_count"] == 1
        else:
            size = server.engine.ready.block_size
            assert values["sglang:num_used_tokens"] == 6 * size
            assert values["sglang:cache_hit_rate"] == 0.75
            assert values["sglang:num_requests_total"] == 1
            assert values["sglang:num_aborted_requests_total"] == 0


@run
async def test_our_names_alone_without_the_setting() -> None:
    async with served() as server:
        page = (await server.client.get("/metrics")).text
        assert "vllm:" not in page and "sglang:" not in page
