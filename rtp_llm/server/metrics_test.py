from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from rtp_llm.engine.messages import TRANSFER_COUNTERS, TRANSFER_GAUGES, EngineStats
from rtp_llm.server.serving_for_tests import fake_engine, run, served

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"
TRANSFERS = dict.fromkeys(TRANSFER_COUNTERS | TRANSFER_GAUGES, 2.5)


async def scrape(server: object) -> dict[str, float]:
    text = (await server.client.get("/metrics")).text  # type: ignore[attr-defined]
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    return {s.name + "".join(f"|{v}" for v in s.labels.values()): s.value for s in samples}


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
async def test_the_engine_s_own_figures() -> None:
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
async def test_figures_of_transfers_are_counters_but_for_those_of_now() -> None:
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
        server.engine.latest_stats = EngineStats(transfers=TRANSFERS)
        families = text_string_to_metric_families((await server.client.get("/metrics")).text)
        names = {f.name + ("_total" if f.type == "counter" else "") for f in families}
    assert len(names) > 20
    missing = sorted(name for name in names if f"`{name}`" not in page)
    assert not missing, f"docs/serving.md does not name {missing}"
