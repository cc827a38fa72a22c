# SPDX-License-Identifier: Apache-2.0
"""No wrong verdict on random schemas; the whole run is verdicts_soak_test.py."""

from __future__ import annotations

from rtp_llm.testing.text.verdicts import Verdicts


def test_no_wrong_verdict() -> None:
    verdicts = Verdicts()
    for seed in range(30):
        verdicts.add(seed, examples=24)
    assert verdicts.wrong == []
    assert sum(verdicts.refused.values()) <= 0.15 * verdicts.schemas, verdicts.refused
    assert min(verdicts.valid, verdicts.invalid) > 4 * verdicts.schemas
