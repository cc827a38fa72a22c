# SPDX-License-Identifier: Apache-2.0
"""No wrong verdict on 500 random schemas."""

from __future__ import annotations

from rtp_llm.testing.text.verdicts import Verdicts


def test_no_wrong_verdict_on_500_schemas() -> None:
    verdicts = Verdicts()
    for seed in range(1000, 1500):
        verdicts.add(seed, examples=40)
    print(verdicts.schemas, verdicts.valid, verdicts.invalid, verdicts.refused)
    assert verdicts.wrong == []
    assert sum(verdicts.refused.values()) <= 0.15 * verdicts.schemas
