# SPDX-License-Identifier: Apache-2.0
"""Tests of the metrics of several ranks together."""

from __future__ import annotations

from rtp_llm.engine.client.rank_metrics import all_stats
from rtp_llm.engine.messages import EngineStats


def test_counts_add_up_and_times_are_the_longest():
    one = EngineStats(running=2, steps=7, step_age=0.5, kv_used_ratio=0.25, generated_tokens=10)
    two = EngineStats(running=1, steps=9, step_age=0.1, kv_used_ratio=0.5, generated_tokens=30)
    both = all_stats([one, two])
    assert (both.running, both.generated_tokens) == (3, 40)
    assert (both.steps, both.step_age, both.kv_used_ratio) == (9, 0.5, 0.5)
