"""Two thousand cases of schemathesis against /openapi.json."""

from __future__ import annotations

from pathlib import Path

from rtp_llm.server.schemathesis_for_tests import find_nothing
from rtp_llm.server.serving_for_tests import fake_engine, listening


def test_two_thousand_cases_find_nothing(tmp_path: Path) -> None:
    with listening(fake_engine("a house.")) as url:
        assert find_nothing(url, tmp_path, "--phases", "coverage,fuzzing", "-n", "160") >= 2000
