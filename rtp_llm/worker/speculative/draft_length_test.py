# SPDX-License-Identifier: Apache-2.0
"""The length of drafts by load, against steps of which the test says how long they take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rtp_llm.worker.speculative.draft_length import DraftLength, shorten

Cost = Callable[[int, int], float]


def memory_bound(batch: int, drafts: int) -> float:
    """Milliseconds of a step that takes 64 tokens in the time of one."""
    return 10.0 + 0.2 * max(0, batch + drafts - 64)


def by_token(batch: int, drafts: int) -> float:
    """Milliseconds where each token takes its time."""
    return 1.0 + batch + drafts


class Simulated:
    """Steps of sequences whose drafts are right with some probability each, and a clock."""

    def __init__(self, cost: Cost, right: float, *, most: int = 7, **more: Any) -> None:
        self.now = 0.0
        self.cost, self.right = cost, right
        self.drafted = 1.0  # the share of sequences that have drafts
        self.tokens = 0
        self.length = DraftLength(most, clock=lambda: self.now, **{"adaptive": True, **more})
        self._random = np.random.default_rng(1)

    def step(self, batch: int, prompt_tokens: int = 0) -> int:
        """One; the length that was chosen."""
        limit = self.length.choose()
        drafted = self._random.random(batch) < self.drafted
        drafts = np.where(drafted, limit, 0).astype(np.int32)
        count = int(drafts.sum())
        rows = batch + count
        plan = SimpleNamespace(num_tokens=rows + prompt_tokens, num_rows=rows, num_outputs=batch)
        self.length.submitted(plan)  # type: ignore[arg-type]
        self.now += self.cost(batch, count + prompt_tokens)
        tokens = 1 + np.minimum(self._random.geometric(1 - self.right, batch) - 1, drafts)
        self.tokens += int(tokens.sum())
        result = SimpleNamespace(num_drafts=drafts, num_tokens=tokens.astype(np.int32))
        self.length.committed(result)  # type: ignore[arg-type]
        return limit

    def run(self, batch: int, steps: int = 400) -> int:
        """The length that most of the later steps had."""
        chosen = [self.step(batch) for _ in range(steps)]
        return Counter(chosen[steps // 2 :]).most_common(1)[0][0]


def test_the_full_length_where_drafts_are_free() -> None:
    assert Simulated(memory_bound, right=0.9).run(batch=1) == 7


def test_none_where_they_lose() -> None:
    simulated = Simulated(by_token, right=0.3)
    assert simulated.run(batch=8) == 0
    assert simulated.length.limit == 0


@pytest.mark.parametrize(("right", "least", "most"), [(0.9, 4, 7), (0.5, 1, 3), (0.02, 0, 0)])
def test_the_length_follows_acceptance(right: float, least: int, most: int) -> None:
    found = Simulated(lambda batch, drafts: 10.0 + drafts, right=right).run(batch=1, steps=2000)
    assert least <= found <= most


def test_each_batch_size_has_its_own() -> None:
    simulated = Simulated(memory_bound, right=0.6, most=3)
    found = {batch: simulated.run(batch) for batch in (1, 4, 256)}
    assert found[1] == found[4] == 3
    assert found[256] == 0
    assert simulated.run(4) == 3


def test_nearly_as_fast_as_the_best_fixed_length() -> None:
    for cost in (memory_bound, by_token):
        for right in (0.1, 0.5, 0.9):
            for batch in (1, 16):
                rates = []
                for options in ({"adaptive": True}, {"adaptive": False}, {"table": [(1, 9, 0)]}):
                    simulated = Simulated(cost, right, **options)
                    simulated.run(batch, steps=3000)
                    rates.append(simulated.tokens / simulated.now)
                assert rates[0] > 0.93 * max(rates), (cost.__name__, right, batch, rates)


def test_it_comes_back_when_drafts_are_right_again() -> None:
    simulated = Simulated(by_token, right=0.0)
    assert simulated.run(batch=2, steps=1000) == 0
    simulated.right, simulated.cost = 0.95, memory_bound
    assert simulated.run(batch=2, steps=4000) == 7


def test_drafts_that_hardly_any_sequence_has_cost_nothing() -> None:
    simulated = Simulated(memory_bound, right=0.9)
    simulated.drafted = 0.05
    assert simulated.run(batch=1, steps=2000) >= 5


def test_steps_with_prompts_are_not_measured() -> None:
    simulated = Simulated(by_token, right=0.0)
    assert {simulated.step(4, prompt_tokens=500) for _ in range(200)} == {7}


def test_one_slow_step_changes_nothing() -> None:
    simulated = Simulated(memory_bound, right=0.9)
    simulated.run(batch=1)
    simulated.cost = lambda batch, drafts: 10000.0
    simulated.step(1)
    simulated.cost = memory_bound
    assert [simulated.step(1) for _ in range(30)] == [7] * 30


def test_overlapping_steps_begin_where_the_one_before_ends() -> None:
    length = DraftLength(3, adaptive=True, clock=lambda: now)
    plan: Any = SimpleNamespace(num_tokens=1, num_rows=1, num_outputs=1)
    result: Any = SimpleNamespace(num_drafts=np.zeros(1, np.int32), num_tokens=np.ones(1, np.int32))
    now = 0.0
    length.choose()
    length.submitted(plan)
    for _ in range(5):  # each takes 4, and the next is submitted 3 before it ends
        now += 1.0
        length.choose()
        length.submitted(plan)
        now += 3.0
        length.committed(result)
    assert length._costs[1].plain.value == 4.0
    length.forget()
    length.committed(result)  # of nothing


def test_a_table_is_taken_as_it_is() -> None:
    simulated = Simulated(by_token, right=0.0, table=[(1, 4, 3), (5, 9, 1), (10, 20, 0)])
    for batch, expected in ((4, 3), (5, 1), (9, 1), (10, 0), (99, 0), (1, 3)):
        simulated.step(batch)
        assert [simulated.step(batch) for _ in range(50)] == [expected] * 50


def test_without_load_all_drafts_are_taken() -> None:
    assert Simulated(by_token, right=0.0, adaptive=False).run(batch=64) == 7
    none = DraftLength(0, adaptive=True)
    assert none.choose() == 0


def test_shorter_drafts() -> None:
    ids, tokens = np.array([5, 6, 7]), np.arange(12, dtype=np.int32).reshape(3, 4)
    drafts = ids, tokens, np.array([4, 1, 0], np.int32)
    short = shorten(drafts, 2)
    assert short is not None and short[2].tolist() == [2, 1, 0] and short[2].dtype == np.int32
    assert shorten(None, 2) is None
    assert shorten(drafts, 4) is drafts
