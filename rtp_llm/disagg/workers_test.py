# SPDX-License-Identifier: Apache-2.0
"""Two workers give the same tokens as one engine, and leak nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rtp_llm.config.settings import Settings
from rtp_llm.disagg import rank_parts
from rtp_llm.disagg.metrics import TransferMetrics
from rtp_llm.disagg.wire.messages import Prefill
from rtp_llm.engine.messages import TRANSFER_COUNTERS, TRANSFER_GAUGES, AddRequest
from rtp_llm.request.beam_search import BeamSearch
from rtp_llm.testing.disagg.workers import SIZES, Pair, prompt
from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.transformers_models import save_model
from rtp_llm.worker.cache.transfer.layout import CacheLayout
from rtp_llm.worker.cache.transfer.pinned_pool import PinnedPool, PoolFullError, rounded


@pytest.fixture(scope="module", params=["qwen3", "mistral"])
def folder(tmp_path_factory: pytest.TempPathFactory, request: Any) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("model")
    window = {"sliding_window": 24, "max_window_layers": 1} if request.param == "mistral" else {}
    save_model(made, request.param, **window)
    with each_token_alone():
        yield made


@pytest.fixture(scope="module")
def pair(folder: Path) -> Iterator[Pair]:
    made = Pair(folder, **SIZES)
    yield made
    made.settle()
    made.close()


@pytest.fixture(scope="module")
def fused(folder: Path) -> TinyEngine:
    return TinyEngine(folder, **SIZES)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 23, 24, 25, 48, 61])
def test_greedy_text_is_that_of_one_engine(pair: Pair, fused: TinyEngine, length: int) -> None:
    tokens = prompt(length, seed=length)
    before = pair.decode.transfers().get("delivered", 0)
    assert pair.tokens(tokens) == fused.tokens(tokens)
    assert pair.decode.transfers()["delivered"] == before + 1
    pair.settle()


def test_prompts_count_for_their_tenant(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    add, seen = pair.prefill.base.engine.add, []

    def spy(request: AddRequest, *others: Any, **more: Any) -> Any:
        seen.append((request.tenant, request.tenant_weight))
        return add(request, *others, **more)

    monkeypatch.setattr(pair.prefill.base.engine, "add", spy)
    request = pair.decode.add(prompt(9, seed=90), tenant="team-a", max_tokens=3)
    pair.until(lambda: pair.finished(request))
    assert seen == [("team-a", 1.0)]
    pair.settle()


@pytest.mark.parametrize("seed", [1, 2**62, None])
def test_sampled_text_is_that_of_one_engine(folder: Path, seed: int | None) -> None:
    pair, fused = Pair(folder, **SIZES), TinyEngine(folder, **SIZES)
    sampled = {"temperature": 1.5, "top_p": 0.95, "seed": seed, "max_tokens": 24}
    for number in range(3):
        tokens = prompt(20 + number, seed=number)
        assert pair.tokens(tokens, **sampled) == fused.tokens(tokens, **sampled)
    assert pair.decode.transfers()["delivered"] == 3
    pair.settle()
    pair.close()


def test_what_changes_logits_is_the_same_on_both_sides(pair: Pair, fused: TinyEngine) -> None:
    tokens = prompt(18, seed=77)
    for params in (
        {"repetition_penalty": 1.4, "presence_penalty": 0.5},
        {"logit_bias": {7: 30.0}},
        {"min_tokens": 5, "stop_token_ids": tuple(range(5, 190))},
        {"no_repeat_ngram_size": 2},
    ):
        assert pair.tokens(tokens, **params) == fused.tokens(tokens, **params)


def test_log_probabilities_of_the_first_token_come_along(pair: Pair, fused: TinyEngine) -> None:
    tokens = prompt(15, seed=5)
    request = pair.decode.add(tokens, logprobs=3, max_tokens=4)
    pair.until(lambda: pair.finished(request))
    alone = fused.add(tokens, logprobs=3, max_tokens=4)
    fused.run()
    found = pair.decode.outcomes[request].logprobs
    expected = fused.outcomes[alone, 0].logprobs
    assert [each.token_id for each in found] == [each.token_id for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [token for token, _ in one.top] == [token for token, _ in other.top]


def test_prefixes_are_reused_on_either_side(pair: Pair, fused: TinyEngine) -> None:
    start = prompt(40, seed=9)
    first = [*start, *prompt(9, seed=10)]
    second = [*start, *prompt(6, seed=11)]
    third = first + pair.tokens(first)  # the prefill worker has the prompt, decode has all
    assert pair.tokens(second) == fused.tokens(second)
    assert pair.tokens(third) == fused.tokens(third)
    before = pair.prefill.transfers()["stored_bytes"]
    assert pair.tokens(first) == fused.tokens(first)
    pair.until(lambda: pair.prefill.transfers()["stored_bytes"] > before)
    # A prompt that only the prefill worker knows, then one that only decode knows.
    only_there, only_here = prompt(33, seed=12), prompt(34, seed=13)
    pair.prefill.add(only_there)
    pair.until(lambda: bool(pair.prefill.outcomes[pair.prefill._last].finish))
    assert pair.tokens(only_there) == fused.tokens(only_there)
    pair.decode.add(only_here, n=2)  # computed here
    pair.until(pair.decode.is_idle)
    assert pair.tokens(only_here) == fused.tokens(only_here)
    pair.settle()


def test_many_at_once(pair: Pair, fused: TinyEngine) -> None:
    prompts = [prompt(1 + 7 * number % 60, seed=100 + number) for number in range(14)]
    requests = [pair.decode.add(tokens, max_tokens=20) for tokens in prompts]
    pair.until(lambda: pair.finished(*requests))
    for request, tokens in zip(requests, prompts, strict=True):
        assert pair.decode.outcomes[request].tokens == fused.tokens(tokens, max_tokens=20)
    pair.settle()


def test_what_no_prefill_worker_takes_is_computed_here(pair: Pair) -> None:
    before = pair.decode.transfers().get("asked", 0)
    beams: dict[str, Any] = {"inputs": {"beam_search": BeamSearch()}}
    kinds: list[dict[str, Any]] = [{"n": 2}, {"max_tokens": 1}, {"prompt_logprobs": 1}]
    for params in (*kinds, beams, {**beams, "n": 3}):
        pair.decode.add(prompt(10, seed=20), **params)
    pair.until(pair.decode.is_idle)
    assert pair.decode.transfers().get("asked", 0) == before


def test_a_request_that_is_aborted_while_it_loads_leaves_nothing(pair: Pair) -> None:
    for steps in range(6):
        request = pair.decode.add(prompt(60, seed=200 + steps))
        for _ in range(steps):
            pair.step()
        pair.decode.engine.abort([(request, 0)])
        pair.settle()


def test_one_that_cannot_be_computed_there_is_computed_here(folder: Path) -> None:
    """The prefill worker's sequences are shorter than ours."""
    pair = Pair(folder, **SIZES, prefill={"max_seq_len": 30})
    tokens = prompt(50, seed=3)
    assert pair.tokens(tokens) == TinyEngine(folder, **SIZES).tokens(tokens)
    assert pair.decode.failures() == {"prefill_invalid": 1}
    assert pair.decode.transfers()["fallbacks"] == 1
    pair.settle()
    pair.close()


def test_by_way_of_staging_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, whose cache the host does not read."""
    monkeypatch.setattr("rtp_llm.disagg.rank_parts.reads_in_place", lambda *of: False)
    pair, fused = Pair(folder, **SIZES), TinyEngine(folder, **SIZES)
    for length in (1, 23, 24, 25, 60):
        tokens = prompt(length, seed=length)
        assert pair.tokens(tokens) == fused.tokens(tokens)
    request = pair.decode.add(prompt(60, seed=1))
    pair.step()
    pair.decode.engine.abort([(request, 0)])
    pair.settle()
    assert pair.decode.transfers()["delivered"] == 5
    pair.close()


def test_what_host_memory_does_not_hold_is_computed_at_the_decode_worker(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is room for one prompt of the two that come at once, and for the next one again."""
    monkeypatch.setattr("rtp_llm.disagg.rank_parts.reads_in_place", lambda *of: False)
    pair, fused = Pair(folder, **SIZES), TinyEngine(folder, **SIZES)
    worker: Any = pair.prefill.connector
    layout = worker._sender.writer._layout
    worker._pool = PinnedPool(layout, 2 * layout.bytes_of(40))
    prompts = [prompt(30, seed=seed) for seed in (1, 2)]
    requests = [pair.decode.add(each) for each in prompts]
    listener = worker._listener
    while sum(isinstance(word, Prefill) for _, word in listener._messages._items) < len(prompts):
        pair.decode.step()
        time.sleep(0.0005)
    pair.until(lambda: pair.finished(*requests))
    for each, request in zip(prompts, requests, strict=True):
        assert pair.decode.outcomes[request].tokens == fused.tokens(each)
    assert pair.decode.failures() == {"prefill_queue_full": 1}
    pair.until(lambda: not worker._prompts)
    pair.tokens(prompt(40, seed=3))
    assert pair.decode.failures() == {"prefill_queue_full": 1}
    pair.until(lambda: not worker._prompts)
    pair.tokens(prompt(41, seed=4))
    assert pair.decode.failures() == {"prefill_queue_full": 2}
    assert pair.decode.transfers()["delivered"] == 2
    pair.settle()
    pair.close()


def test_what_a_decode_workers_host_memory_does_not_hold_is_computed_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same on the other side, whose memory is taken before a prefill worker is asked."""
    monkeypatch.setattr("rtp_llm.disagg.rank_parts.reads_in_place", lambda *of: False)
    pool_for = rank_parts.pool_for
    pools: list[PinnedPool] = []

    def small_pool(settings: Settings, layout: CacheLayout, ranks: int) -> PinnedPool:
        if settings.role == "prefill":
            return pool_for(settings, layout, ranks)
        pieces = [rounded(layout.layer_bytes(layer, 8)) for layer in layout.layers]
        pools.append(PinnedPool(layout, sum(pieces)))
        return pools[0]

    monkeypatch.setattr("rtp_llm.disagg.rank_parts.pool_for", small_pool)
    pair, fused = Pair(folder, **SIZES), TinyEngine(folder, **SIZES)
    prompts = [prompt(30, seed=seed) for seed in (1, 2)]
    requests = [pair.decode.add(each) for each in prompts]
    pair.until(lambda: pair.finished(*requests))
    for each, request in zip(prompts, requests, strict=True):
        assert pair.decode.outcomes[request].tokens == fused.tokens(each)
    assert pair.decode.failures() == {"load_failed": 1}
    assert pair.decode.transfers()["fallbacks"] == 1
    assert pair.prefill.transfers()["prompts"] == 1
    assert pools[0]._taken == 0
    pair.tokens(prompt(32, seed=3))
    assert pair.decode.failures() == {"load_failed": 1}
    assert pair.decode.transfers()["delivered"] == 2
    pair.settle()
    pair.close()


@pytest.mark.parametrize(
    ("size", "taken"), [(0, 0), (1, 1), (2, 2), (3, 4), (4096, 4096), (4097, 8192)]
)
def test_pinned_memory_comes_in_powers_of_two(pair: Pair, size: int, taken: int) -> None:
    class Owner:
        """Of some memory."""

    layout = pair.prefill.connector._sender.writer._layout
    pool, owner = PinnedPool(layout, taken), Owner()
    pool.take([size], owner)
    with pytest.raises(PoolFullError, match="--cache-store-mem-mb"):
        pool.take([1], owner)
    del owner
    pool.take([taken], pool)


def test_pieces_of_a_prompt_count_as_the_most_they_may_take(pair: Pair) -> None:
    """Ten blocks may come as 3, 3, 3 and 1: each takes up to twice what it has, less a block."""
    layout = pair.prefill.connector._sender.writer._layout
    tokens, whole = 10 * layout.block_size, layout.bytes_of(10 * layout.block_size)
    assert PinnedPool(layout, 2 * whole).problem([], tokens) is None
    assert PinnedPool(layout, 2 * whole - 1).problem([], tokens)
    assert PinnedPool(layout, 3 * whole).problem([tokens], tokens)


def test_host_memory_is_half_of_what_is_free_unless_it_is_set(pair: Pair) -> None:
    worker: Any = pair.prefill.connector
    assert worker._pool is None  # the cache is read where it is
    layout = worker._sender.writer._layout
    size = layout.block_size
    blocks = 2**40 // layout.bytes_of(size)
    assert PinnedPool(layout, None).problem([], size) is None
    text = PinnedPool(layout, None).problem([], blocks * size)
    assert text is not None and "--cache-store-mem-mb" in text
    assert PinnedPool(layout, 2 << 40).problem([], blocks * size) is None


def test_the_metrics_know_every_figure(pair: Pair) -> None:
    pair.tokens(prompt(30, seed=30))
    pair.settle()
    prefill, decode = pair.prefill.transfers(), pair.decode.transfers()
    assert {"prompts", "stored_bytes", "store_seconds", "writer_queue"} <= prefill.keys()
    assert {"asked", "delivered", "seconds", "awaited_prompts"} <= decode.keys()
    assert prefill.keys() | decode.keys() <= TRANSFER_COUNTERS.keys() | TRANSFER_GAUGES.keys()
    with pytest.raises(AssertionError, match="the metrics know no figure mistyped"):
        TransferMetrics().add(mistyped=1)
