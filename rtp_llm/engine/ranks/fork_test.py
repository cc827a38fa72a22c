# SPDX-License-Identifier: Apache-2.0
"""All ranks of a model see the same forks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rtp_llm.testing.engine.drafting_models import TIGHT, WORDS, save_drafting_model
from rtp_llm.testing.engine.forks import check_forks, play_forks
from rtp_llm.testing.engine.tensor_ranks import check_alike, ranks
from rtp_llm.testing.engine.tiny_engine import TinyEngine

pytestmark = pytest.mark.usefixtures("forked_processes")

CASES: list[tuple[str, int, dict[str, Any]]] = [
    ("mtp qwen3_5", 2, {}),
    ("none qwen3_next", 1, {"pipeline_parallel_size": 2}),
]


@pytest.mark.parametrize(("kind", "size", "settings"), CASES)
def test_the_same_outcomes(kind: str, size: int, settings: dict[str, Any], tmp_path: Path) -> None:
    model = save_drafting_model(tmp_path, kind)
    drafts = {} if kind.startswith("none") else model.settings
    one = TinyEngine(model.folder, **TIGHT, seed=3, kv_cache_mem_mb=4, **drafts)
    play_forks(one, WORDS)
    given = {**TIGHT, "kv_cache_mem_mb": 4, **drafts, **settings}
    with ranks(model.folder, size, **given) as engine:
        play_forks(engine, WORDS)
    check_forks(engine)
    check_alike(engine.outcomes, one.outcomes)
