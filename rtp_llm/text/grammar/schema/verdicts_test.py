# SPDX-License-Identifier: Apache-2.0
"""No wrong verdict on random schemas; the whole run is verdicts_soak_test.py."""

from __future__ import annotations

from rtp_llm.testing.text.verdicts import Verdicts


def test_integers_beyond_what_unbounded_ones_may_be_are_not_compared() -> None:
    verdicts = Verdicts()
    verdicts.add(1341, examples=40)  # draws -3341454434623992000, which Python writes with e+18
    assert verdicts.wrong == [] and verdicts.valid > 0


def test_no_wrong_verdict() -> None:
    verdicts = Verdicts()
    for seed in range(30):
        verdicts.add(seed, examples=24)
    assert verdicts.wrong == []
    assert sum(verdicts.refused.values()) <= 0.15 * verdicts.schemas, verdicts.refused
    assert min(verdicts.valid, verdicts.invalid) > 4 * verdicts.schemas
