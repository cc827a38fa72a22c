# SPDX-License-Identifier: Apache-2.0
"""Answers of a random model to random schemas validate; see schema_answers_soak_test.py."""

from __future__ import annotations

from pathlib import Path

from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.schema_answers import (
    answers_alone,
    answers_in_batches,
    free_alone,
    save_answering_model,
    schema_cases,
)


def test_answers_validate(tmp_path: Path) -> None:
    folder = save_answering_model(tmp_path)
    cases = schema_cases(folder, 48)
    with each_token_alone():
        alone = answers_alone(folder, cases[:16], seed=0, overlap=True)
        batched, free = answers_in_batches(folder, cases, seed=100, overlap=True)
        assert free == free_alone(folder, len(cases), seed=100)
    assert alone.wrong == batched.wrong == []
    assert alone.ended >= 14
    assert batched.ended >= 45
