# SPDX-License-Identifier: Apache-2.0
"""A connector that keeps evicted blocks in a dictionary changes no token of any request."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rtp_llm.engine.kv_connector import KvConnector
from rtp_llm.engine.messages import RequestFailed
from rtp_llm.request.beam_search import BeamSearch
from rtp_llm.testing.engine.dictionary_connector import DictionaryConnector
from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.tiny_engine import TinyEngine
from rtp_llm.testing.models.hybrid_model import hybrid_model
from rtp_llm.testing.models.transformers_models import save_model

BLOCK = 4
SIZES: dict[str, Any] = {
    "seq_size_per_block": BLOCK,
    "max_batch_tokens_size": 24,
    "max_running_requests": 6,
    "max_seq_len": 100,
}
# One layer sees everything, two a window: two groups of blocks.
WINDOWS = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}


def prompt(length: int, seed: int) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(5, 190, length).tolist()
    return tokens


class Both:
    """One engine with few blocks and a connector, and one with many blocks and none."""

    def __init__(self, folder: Path, mode: Any, **settings: Any) -> None:
        self.small = TinyEngine(folder, **SIZES, kv_cache_mem_mb=1, **settings)
        self.plain = TinyEngine(folder, **SIZES, kv_cache_mem_mb=8, **settings)
        self.connector = DictionaryConnector(self.small.engine, self.small.built.worker, mode)
        self.rank, self.counts = self.connector.rank, self.connector.counts

    def compare(self, prompts: list[list[int]], **params: Any) -> None:
        """All at once on the small engine, each alone on the plain one."""
        requests = [self.small.add(each, **params) for each in prompts]
        self.small.run()
        for request, each in zip(requests, prompts, strict=True):
            outcome = self.small.outcomes[request, 0]
            assert outcome.tokens == self.plain.tokens(each, **params)
            assert outcome.cached < len(each)

    def evict(self) -> None:
        """Let other prompts take all blocks of the largest group."""
        groups = self.small.built.scheduler.stats()["groups"]
        for seed in range(max(each["total_blocks"] for each in groups) * BLOCK // 90 + 2):
            self.small.add(prompt(90, 1000 + seed), max_tokens=1)
        self.small.run()


# Heads, windows, latents and recurrent states.
KINDS = [
    ("qwen3", "whole"),
    ("qwen3", "by layer"),
    ("qwen2", "whole"),
    ("qwen2", "by layer"),
    ("deepseek_v2", "whole"),
    ("hybrid", "by layer"),
]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: " ".join(kind).replace(" ", "-"))
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Both]:
    name, mode = request.param
    folder = tmp_path_factory.mktemp(name)
    with ExitStack() as stack:
        if name == "hybrid":
            stack.enter_context(hybrid_model(folder))
        else:
            save_model(folder, name, **(WINDOWS if name == "qwen2" else {}))
        stack.enter_context(each_token_alone())
        yield Both(folder, mode, **({"load_format": "dummy"} if name == "hybrid" else {}))


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "both" in request.fixturenames:
        made: Both = request.getfixturevalue("both")
        made.small.run()
        made.small.step()
        made.small.assert_all_free()


def test_evicted_prefixes_come_back(both: Both) -> None:
    first = prompt(61, 1)
    both.compare([first])
    both.evict()
    assert both.counts.saved > 0 and not both.counts.loads
    both.compare([first])
    assert both.counts.loads == [(0, both.counts.loaded)] and both.counts.loaded > 40
    assert bool(both.rank.waited) == (both.rank.mode == "by layer")
    both.compare([[*first[:41], 9, 8, 7], [*first, 9]])


def test_the_device_has_a_part_and_the_dictionary_more(both: Both) -> None:
    tokens = prompt(61, 2)
    both.compare([tokens])
    both.evict()
    both.connector.max_tokens = 32
    both.compare([tokens[:34]])
    start, end = both.counts.loads[-1]
    assert start == 0 and 0 < end <= 32
    both.connector.max_tokens = 1 << 30
    both.compare([tokens])
    start, end = both.counts.loads[-1]
    assert 0 < start < end or both.rank.cache.recurrent  # of a state there is no part


def test_random_traffic_with_few_blocks(both: Both) -> None:
    """Shared prefixes, preemptions, aborts and loads that are cut short."""
    choose = random.Random(3)
    stems = [prompt(50, seed) for seed in range(4)]
    expected: dict[int, list[int]] = {}
    open_requests: list[int] = []
    for number in range(16):
        stem = choose.choice(stems)[: choose.randint(1, 50)]
        tokens = [*stem, *prompt(choose.randint(0, 20), 100 + number)]
        length = choose.randint(2, 25)
        both.connector.max_tokens = choose.choice([8, 16, 1 << 30])
        request = both.small.add(tokens, max_tokens=length)
        expected[request] = both.plain.tokens(tokens, max_tokens=length)
        open_requests.append(request)
        for _ in range(choose.randint(0, 6)):
            both.small.step()
        if choose.random() < 0.2:
            aborted = open_requests.pop(choose.randrange(len(open_requests)))
            both.small.engine.abort([(aborted, 0)])
            del expected[aborted]
        both.small.engine.check_integrity()
    both.small.run()
    for request, tokens in expected.items():
        assert both.small.outcomes[request, 0].tokens == tokens
    assert both.counts.saved > 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("model")
    save_model(made, "qwen3")
    with each_token_alone():
        yield made


@pytest.fixture
def plain_both(folder: Path) -> Both:
    return Both(folder, "whole")


def test_an_abort_in_the_middle_of_a_load(plain_both: Both) -> None:
    both, tokens = plain_both, prompt(61, 1)
    both.compare([tokens])
    both.evict()
    request = both.small.add(tokens)
    while not both.counts.loads:
        both.small.step()
    both.small.step()
    (loading,) = both.rank._loads.values()
    assert 0 < len(loading.layers) < len(both.rank._layers)
    both.small.engine.abort([(request, 0)])
    assert both.small.engine.has_work
    both.small.run()
    both.small.assert_all_free()
    assert both.counts.cancelled == 1 and not both.small.outcomes[request, 0].tokens
    both.compare([tokens])


def test_a_load_that_fails_is_computed(plain_both: Both) -> None:
    both, tokens = plain_both, prompt(61, 1)
    both.compare([tokens])
    both.evict()
    both.rank.fails = lambda order: True
    both.compare([tokens, prompt(30, 5)])
    assert both.counts.failed == 1 and both.counts.loaded == 0
    both.small.assert_all_free()


def test_preempted_sequences_load_what_was_evicted_of_theirs(plain_both: Both) -> None:
    both = plain_both
    prompts = [prompt(40 + number, number) for number in range(8)]
    both.compare(prompts, max_tokens=50)
    stats = both.small.built.scheduler.stats()
    assert stats["preemptions"] > 0
    assert any(end > 48 for _, end in both.counts.loads), "with tokens of the output"
    both.small.assert_all_free()


def test_sequences_with_siblings_are_computed(plain_both: Both) -> None:
    both, tokens = plain_both, prompt(61, 1)
    both.compare([tokens])
    both.evict()
    request = both.small.add(tokens, n=2, temperature=0.0)
    both.small.run()
    assert not both.counts.loads
    expected = both.plain.tokens(tokens)
    assert all(both.small.outcomes[request, each].tokens == expected for each in range(2))


def test_beams_are_computed_and_evict_others(plain_both: Both) -> None:
    both = plain_both
    both.compare([prompt(61, 1)])
    both.evict()
    given: dict[str, Any] = {"n": 3, "max_tokens": 20, "inputs": {"beam_search": BeamSearch()}}
    prompts = [prompt(61, 1), prompt(70, 2), prompt(50, 3)]
    small, plain = both.small, both.plain
    requests = [[engine.add(each, **given) for each in prompts] for engine in (small, plain)]
    small.run()
    plain.run()
    assert not both.counts.loads
    for ours, others in zip(*requests, strict=True):
        for index in range(3):
            assert small.outcomes[ours, index].tokens == plain.outcomes[others, index].tokens
    both.compare([prompt(61, 1)])


class BrokenConnector(KvConnector):
    """Raises when it is asked."""

    def get_num_new_matched_tokens(self, sequence: int, num_computed_tokens: int) -> int:
        raise OSError("the store is gone")


def test_a_connector_that_raises_ends_no_request(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = TinyEngine(folder, **SIZES)
    expected = engine.tokens(prompt(20, 1))
    engine = TinyEngine(folder, **SIZES)
    broken = BrokenConnector()
    engine.engine.connect(broken)
    assert engine.tokens(prompt(20, 1)) == expected
    assert "the store is gone" in caplog.text


class Recording(KvConnector):
    """Writes down what it is notified of."""

    def __init__(self) -> None:
        self.added: list[int] = []
        self.ended: list[int] = []
        self.steps = 0

    def add_request(self, request: Any, seeds: Any) -> None:
        self.added.append(request.request_id)

    def request_finished(self, sequences: Any) -> None:
        self.ended += sequences

    def begin_step(self) -> list[RequestFailed]:
        self.steps += 1
        return []


def test_every_request_that_begins_ends_once(folder: Path) -> None:
    engine, connector = TinyEngine(folder, **SIZES), Recording()
    engine.engine.connect(connector)
    first, second = engine.add(prompt(5, 1), max_tokens=3), engine.add(prompt(5, 2), max_tokens=9)
    engine.step()
    engine.engine.abort([(second, 0)])
    engine.run()
    assert connector.added == [first, second]
    assert (
        sorted(each >> 7 for each in connector.ended) == [first, second]
        or len(connector.ended) == 2
    )
    assert connector.steps >= 3
