# SPDX-License-Identifier: Apache-2.0
"""Every answer of a random model to 200 random schemas parses and validates.

Alone and in batches of 64 with free rows, which do not change. An answer that its length has cut
has no verdict: these are few, since the model leans towards the end, and are asked for again, with
more of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rtp_llm.testing.engine.each_token_alone import each_token_alone
from rtp_llm.testing.engine.schema_answers import (
    LEAN,
    Answers,
    SchemaCase,
    answers_alone,
    answers_in_batches,
    free_alone,
    save_answering_model,
    schema_cases,
)

SCHEMAS, ATTEMPTS = 200, 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_answering_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def cases(folder: Path) -> list[SchemaCase]:
    return schema_cases(folder, SCHEMAS)


def check(answers: Answers) -> None:
    print(f"{answers.ended} ended, {len(answers.cut)} cut, {answers.tokens} tokens")
    assert answers.wrong == []
    assert answers.ended + len(answers.cut) == SCHEMAS
    assert answers.ended >= 0.95 * SCHEMAS
    for attempt in range(1, 1 + ATTEMPTS):
        seed, lean = 10**6 * attempt, LEAN + 0.5 * attempt
        answers = answers_alone(answers.folder, answers.cut, seed=seed, overlap=True, lean=lean)
        assert answers.wrong == []
    assert answers.cut == []


@pytest.mark.parametrize("overlap", [False, True])
def test_answers_alone(folder: Path, cases: list[SchemaCase], overlap: bool) -> None:
    check(answers_alone(folder, cases, seed=1000 * (1 + overlap), overlap=overlap))


@pytest.mark.parametrize("overlap", [False, True])
def test_answers_among_free_rows(folder: Path, cases: list[SchemaCase], overlap: bool) -> None:
    seed = 1000 * (3 + overlap)
    with each_token_alone():
        answers, free = answers_in_batches(folder, cases, seed=seed, overlap=overlap)
        assert free == free_alone(folder, len(cases), seed=seed)
    check(answers)
