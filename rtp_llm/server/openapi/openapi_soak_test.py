# SPDX-License-Identifier: Apache-2.0
"""Thousands of cases of schemathesis against /openapi.json."""

from __future__ import annotations

from pathlib import Path

from rtp_llm.testing.server.schemathesis import find_nothing
from rtp_llm.testing.server.serving import fake_engine, listening


def test_two_thousand_cases_find_nothing(tmp_path: Path) -> None:
    with listening(fake_engine("a house.")) as url:
        cases = find_nothing(url, tmp_path, "--phases", "coverage,fuzzing", "-n", "160")
    print(f"{cases} cases")
    assert cases >= 2000


def test_stored_responses_find_nothing(tmp_path: Path) -> None:
    with listening(fake_engine("a house."), max_stored_responses=8) as url:
        phases = ("--phases", "coverage,fuzzing", "-n", "160")
        cases = find_nothing(url, tmp_path, "--include-path-regex", "responses", *phases)
    print(f"{cases} cases")
    assert cases >= 400
